"""Multiplication by a constant matrix with torch's own product; for any device and dtype."""

from collections.abc import Sequence

import torch
from torch import Tensor


class PlainMatrix:
    """Keeps the matrix as [in, out], the order that products with few rows read fastest."""

    def __init__(self, parts: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        """`parts` are checkpoint matrices [out, in] that read the same input; their outputs stand side by side."""
        counts = [part.shape[0] for part in parts]
        self._weight = torch.empty(parts[0].shape[1], sum(counts), dtype=dtype, device=device)
        for place, part in zip(self._weight.split(counts, 1), parts, strict=True):
            place.copy_(part.t())

    def __call__(self, x: Tensor) -> Tensor:
        return torch.mm(x, self._weight)
