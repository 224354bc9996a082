"""Attention of decode rows as one batch: one query position a row, keys and values gathered from pages of mixed
lengths.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from segue.batch.step import IntArray
from segue.kernels.attention.paging import PageTable, blocks_of
from segue.kernels.interface import AttentionMemory
from segue.kernels.scratch import Scratch

SEEN, HIDDEN = np.float32(0), np.float32(-np.inf)


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """What all layers of a component share: the pages to read and which of their tokens each row sees."""

    rows: int
    heads: int
    index: Tensor  # [rows * heads * columns] int64
    hidden: Tensor  # [rows, 1, 1, columns * page tokens]: 0 where the row sees the token, else -inf

    @staticmethod
    def of(table: PageTable, depths: IntArray, heads: int, window: int | None, dtype: torch.dtype) -> "DecodeBatch":
        """`depths` [rows] are the positions of the rows' tokens, whose keys are stored already."""
        rows, size = depths.shape[0], table.page_tokens
        position, first = depths[:, None], table.first[:rows, None]
        newest = position // size - first
        column = np.arange(int(newest.max()) + 1)
        token = np.arange(column.shape[0] * size) + first * size
        seen, used = token <= position, column <= newest
        if window is not None:
            seen &= token >= position - window
            used &= (first + column + 1) * size > position - window
        # An unused column may be the sink or hold anything, NaN included. The row's own newest page stands in for it.
        pages = table.pages[np.arange(rows)[:, None], np.where(used, column, newest)]
        hidden = torch.from_numpy(np.where(seen, SEEN, HIDDEN)).to(table.device, dtype)
        return DecodeBatch(rows, heads, table.head_blocks(pages, heads), hidden[:, None, None, :])

    def attend(self, memory: AttentionMemory, query: Tensor, keys: Tensor, values: Tensor, scratch: Scratch) -> Tensor:
        """query [rows, query heads, dim]; keys and values are the layer's memory [pages, heads, page tokens, dim]."""
        dim = query.shape[-1]
        shape = (self.rows, self.heads, -1, dim)
        key = scratch.gather("keys", blocks_of(keys), self.index).view(shape)
        value = scratch.gather("values", blocks_of(values), self.index).view(shape)
        # Query heads that share a kv head stand where a sequence of queries would.
        out = scaled_dot_product_attention(query.reshape(shape), key, value, attn_mask=self.hidden, scale=memory.scale)
        return out.reshape(self.rows, -1)
