"""Buffers that are used again in every layer and step, instead of fresh memory that the system has to map and clear."""

import math

import torch
from torch import Tensor

SHAPES_MAX = 8


class Scratch:
    """One growing buffer per use, of one type. A buffer's contents last until it is asked for again under that name."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._shaped: dict[str, dict[tuple[int, ...], tuple[Tensor, Tensor]]] = {}

    def gather(self, use: str, blocks: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Rows `index` of blocks [count, size], copied to the buffer of that use and seen as `shape`."""
        rows, shaped = self._views(use, index.shape[0], shape, blocks.dtype, blocks.device)
        torch.index_select(blocks, 0, index, out=rows)
        return shaped

    def buffer(self, use: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The buffer of that use as `shape`, for whatever the caller writes."""
        return self._views(use, 1, shape, dtype, device)[1]

    def _views(
        self, use: str, count: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """The buffer as `count` rows and as `shape`."""
        known = self._shaped.setdefault(use, {})
        key = (count, *shape)
        if key not in known:
            elements = math.prod(shape)
            if not self._fits(use, elements, dtype, device) or len(known) >= SHAPES_MAX:
                known.clear()
            rows = self._buffers[use][:elements].view(count, -1)
            known[key] = rows, rows.view(shape)
        return known[key]

    def _fits(self, use: str, elements: int, dtype: torch.dtype, device: torch.device) -> bool:
        """Whether the buffer was large enough; one that was not is replaced."""
        buffer = self._buffers.get(use)
        if buffer is not None and buffer.numel() >= elements:
            return True
        # Half as much again, so that rows that grow by a token a step rarely ask for a larger one.
        self._buffers[use] = torch.empty(elements * 3 // 2, dtype=dtype, device=device)
        return False
