"""Tokens: the ids of a prompt as one buffer, four bytes each as on the wire, and those of an output with reports."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_CODE = "I"
TOKEN_BYTES = array(_CODE).itemsize


class EmittedToken(NamedTuple):
    """One output token with what was reported beside it: its logprob, and alternatives as (token id, logprob).

    The logprob is None where nobody asked for it, and where nobody here knows it: the token was put out elsewhere.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


def token_array(tokens: "Sequence[int] | npt.NDArray[np.uint32]") -> "array[int]":
    """The tokens themselves if they are one already: nobody changes it. They must fit (OverflowError)."""
    if isinstance(tokens, array) and tokens.typecode == _CODE:
        return tokens
    return array(_CODE, tokens.tobytes() if isinstance(tokens, np.ndarray) else tokens)
