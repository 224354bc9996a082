"""Buffers that are used again in every layer and step, instead of fresh memory that the system has to map and clear."""

import torch
from torch import Tensor


class Scratch:
    """One growing buffer per use. A buffer's contents last until it is asked for again under the same name."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def gather(self, use: str, blocks: Tensor, index: Tensor) -> Tensor:
        """Rows `index` of blocks [count, size], copied to the buffer of that use: [len(index), size]."""
        shape = (index.shape[0], blocks.shape[1])
        count = shape[0] * shape[1]
        buffer = self._buffers.get(use)
        if buffer is None or buffer.numel() < count:
            # Half as much again, so that rows that grow by a token a step rarely ask for a larger one.
            buffer = self._buffers[use] = torch.empty(count * 3 // 2, dtype=blocks.dtype, device=blocks.device)
        return torch.index_select(blocks, 0, index, out=buffer[:count].view(shape))
