"""Decode rows of very different lengths: a batch is padded to its longest row, so they are attended in parts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.batch.step import IntArray
from segue.kernels.attention.stored import DecodeBatch, KeyValues
from segue.kernels.rows import TokenPlaces

SPARED_MIN = 4096
"""Padded positions that must be spared for one part more, which costs its operations in every layer."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """Batches of rows that are about equally long."""

    parts: Sequence[tuple[Tensor, DecodeBatch]]
    """Numbers of the rows, and their batch."""

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        out = query.new_empty(query.shape[0], query[0].numel())
        for rows, batch in self.parts:
            out.index_copy_(0, rows, batch.attend(layer, query.index_select(0, rows), scale))
        return out


def batch_by_length(
    stored: KeyValues,
    tokens: TokenPlaces,
    window: int | None,
    device: torch.device,
    spared_min: int = SPARED_MIN,
) -> DecodeBatch:
    """One row for each of these tokens, whose keys are stored already."""
    seen = tokens.positions + 1 if window is None else np.minimum(tokens.positions, window) + 1
    parts = split(seen, spared_min)
    if len(parts) == 1:
        return stored.batch(tokens)
    return SplitBatch([(torch.from_numpy(rows).to(device), stored.batch(tokens.at(rows))) for rows in parts])


def split(lengths: IntArray, spared_min: int) -> list[IntArray]:
    """Rows by length, longest first, cut before one that is less than half as long as its part, if that pays."""
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    if (ordered[0] - ordered[-1]) * len(ordered) < spared_min:
        return [np.arange(len(lengths))]
    cuts, longest = [], ordered[0]
    for row, length in enumerate(ordered.tolist()):
        if 2 * length < longest and (longest - length) * (len(ordered) - row) >= spared_min:
            cuts.append(row)
            longest = length
    return np.split(order, cuts)
