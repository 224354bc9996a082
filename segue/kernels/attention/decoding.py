"""Attention of decode rows as one batch: one query position a row, over sequences of mixed lengths in scattered pages.

Keys are gathered token by token; values are not: a bag sums rows of the memory where they lie.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.kernels.attention.paging import PageTable
from segue.kernels.rows import TokenPlaces
from segue.kernels.scratch import Scratch

SEEN, HIDDEN = np.float32(0), np.float32(-np.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeShape:
    """`sharing` query heads share one kv head; `block_rows` is that of the layers' memory."""

    heads: int
    sharing: int
    window: int | None
    block_rows: int


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """What all layers of a component share: which rows of their memory each row of the batch sees."""

    key_rows: Tensor  # [rows * heads * tokens] int64
    value_rows: Tensor  # [rows * query heads * tokens] int64: the same for every query head
    bags: Tensor  # [rows * query heads] int64: where each query head's part of `value_rows` starts
    hidden: Tensor  # [rows * heads, 1, tokens]: 0, or -inf where a row has fewer tokens

    @staticmethod
    def of(table: PageTable, tokens: TokenPlaces, shape: DecodeShape, dtype: torch.dtype) -> "DecodeBatch":
        """One row of the batch per token, whose key is stored already. What a token's own row holds follows from its
        position alone, but for the padding to the longest row.
        """
        newest = tokens.positions[:, None]
        oldest = np.zeros_like(newest) if shape.window is None else np.maximum(newest - shape.window, 0)
        seen = np.arange(int((newest - oldest).max()) + 1) + oldest
        # A shorter row repeats its newest token, hidden: what nobody wrote may be NaN, which no weight makes harmless.
        rows = table.token_rows(tokens.rows, np.minimum(seen, newest), shape.heads, shape.block_rows)
        hidden = np.where(seen <= newest, SEEN, HIDDEN).repeat(shape.heads, 0)[:, None]
        return DecodeBatch(
            table.tensor(rows),
            table.tensor(rows.repeat(shape.sharing, 1)),
            torch.arange(0, rows.size * shape.sharing, seen.shape[1], device=table.device),
            torch.from_numpy(hidden).to(table.device, dtype),
        )

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, scratch: Scratch) -> Tensor:
        """query [rows, query heads, dim]; keys and values are the rows [.., dim] of the layer's memory."""
        blocks, _, tokens = self.hidden.shape
        dim = query.shape[2]
        key = scratch.gather("keys", keys, self.key_rows, (blocks, tokens, dim))
        # Query heads that share a kv head stand where a sequence of queries would.
        scores = torch.baddbmm(self.hidden, query.reshape(blocks, -1, dim), key.transpose(1, 2), alpha=scale)
        weights = torch.softmax(scores, -1).flatten()
        out: Tensor = torch.embedding_bag(values, self.value_rows, self.bags, False, 0, False, weights)[0]
        return out.view(query.shape[0], -1)
