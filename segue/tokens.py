"""The token ids of a prompt as one buffer: four bytes each, as wide as they are on the wire."""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_CODE = "I"
TOKEN_BYTES = array(_CODE).itemsize


def token_array(tokens: "Sequence[int] | npt.NDArray[np.uint32]") -> "array[int]":
    """The tokens themselves if they are one already: nobody changes it. They must fit (OverflowError)."""
    if isinstance(tokens, array) and tokens.typecode == _CODE:
        return tokens
    return array(_CODE, tokens.tobytes() if isinstance(tokens, np.ndarray) else tokens)
