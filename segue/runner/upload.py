"""Several small arrays to a device in one copy; knows nothing of what is in them."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from segue.state.layout import ALIGN_BYTES

Arrays: TypeAlias = Sequence[npt.NDArray[Any]]


def upload(arrays: Arrays, device: torch.device) -> list[torch.Tensor]:
    """One-dimensional tensors like the arrays: on a device views of one tensor, on the CPU the arrays themselves."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    # Page-locked memory is not given out again before the copy out of it is done.
    host = torch.empty(packed_bytes(arrays), dtype=torch.uint8, pin_memory=device.type == "cuda")
    pack(arrays, host)
    return unpack(host.to(device, non_blocking=True), arrays)


def packed_bytes(arrays: Arrays) -> int:
    """How much `pack` fills."""
    return sum(map(_room, arrays))


def pack(arrays: Arrays, host: torch.Tensor) -> None:
    """The arrays' bytes one after another, into uint8 [packed_bytes]."""
    target, start = host.numpy(), 0
    for array in arrays:
        target[start : start + array.nbytes] = array.view(np.uint8)
        start += _room(array)


def unpack(packed: torch.Tensor, arrays: Arrays) -> list[torch.Tensor]:
    """Views of what `pack` made of these arrays, wherever it lies by now."""
    views, start = [], 0
    for array in arrays:
        views.append(packed[start : start + array.nbytes].view(torch.from_numpy(array).dtype))
        start += _room(array)
    return views


def _room(array: npt.NDArray[Any]) -> int:
    """Each begins as aligned as a tensor of its own: Triton compiles a kernel anew for pointers that are less so."""
    return -(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES
