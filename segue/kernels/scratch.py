"""Buffers that are used again in every layer and step, instead of fresh memory that the system has to map and clear."""

import torch
from torch import Tensor

SHAPES_MAX = 8


class Scratch:
    """One growing buffer per use. A buffer's contents last until it is asked for again under the same name."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._shaped: dict[str, dict[tuple[int, ...], tuple[Tensor, Tensor]]] = {}

    def gather(self, use: str, blocks: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Rows `index` of blocks [count, size], copied to the buffer of that use and seen as `shape`."""
        known = self._shaped.setdefault(use, {})
        key = (index.shape[0], *shape)
        if key not in known:
            if not self._fits(use, blocks, index.shape[0]) or len(known) >= SHAPES_MAX:
                known.clear()
            rows = self._buffers[use][: index.shape[0] * blocks.shape[1]].view(index.shape[0], -1)
            known[key] = rows, rows.view(shape)
        rows, shaped = known[key]
        torch.index_select(blocks, 0, index, out=rows)
        return shaped

    def _fits(self, use: str, blocks: Tensor, count: int) -> bool:
        """Whether the buffer was large enough; one that was not is replaced."""
        elements = count * blocks.shape[1]
        buffer = self._buffers.get(use)
        if buffer is not None and buffer.numel() >= elements:
            return True
        # Half as much again, so that rows that grow by a token a step rarely ask for a larger one.
        self._buffers[use] = torch.empty(elements * 3 // 2, dtype=blocks.dtype, device=blocks.device)
        return False
