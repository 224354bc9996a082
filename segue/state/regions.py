"""The memory of a worker's state: one run of offsets over the regions that it lies in; knows no unit and no rank."""

from bisect import bisect_right
from collections.abc import Sequence

import torch

from segue.state.layout import ALIGN_BYTES


class Regions:
    """Regions may lie on several devices. Between two of them there is a gap of offsets, so no run of bytes goes from
    one to the next.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """uint8 [bytes] each."""
        self.tensors = tuple(tensors)
        starts, end = [], 0
        for tensor in self.tensors:
            starts.append(end)
            end += tensor.numel() + ALIGN_BYTES
        self.starts = tuple(starts)
        """The offset at which each begins."""
        self.bytes = end - ALIGN_BYTES
        """Where the last one ends."""
        self.cuda_devices = tuple(dict.fromkeys(tensor.device for tensor in self.tensors if tensor.is_cuda))
        """Each once."""

    def piece(self, offset: int, length: int) -> torch.Tensor:
        """A run of bytes, uint8 [length]."""
        number = bisect_right(self.starts, offset) - 1
        tensor, first = self.tensors[number], offset - self.starts[number]
        assert 0 <= first <= first + length <= tensor.numel(), f"{length} bytes from {offset} on are in no region"
        return tensor[first : first + length]

    def settle(self) -> None:
        """Returns once all has been done that this thread gave to the devices' current streams.

        Others read and write this memory (peers, and other ranks) without regard to those streams.
        """
        for device in self.cuda_devices:
            torch.cuda.current_stream(device).synchronize()
