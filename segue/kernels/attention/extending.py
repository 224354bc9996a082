"""Attention of one row that extends its sequence by many tokens, in blocks of queries."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from segue.kernels.attention.component import PagedComponent

BLOCK_TOKENS = 256


@dataclass(frozen=True, slots=True)
class QueryBlock:
    """Queries [start, stop) of the row, the keys [key_start, key_stop) of the gathered ones that they see, and the
    mask.
    """

    start: int
    stop: int
    key_start: int
    key_stop: int
    hidden: Tensor  # [1, 1, stop - start, key_stop - key_start]: 0 or -inf


@dataclass(frozen=True, slots=True)
class ExtendRow:
    """What all layers of a component share of one extended row."""

    heads: int
    index: Tensor
    """The (page, head) blocks that its queries see, by head; flat."""
    blocks: tuple[QueryBlock, ...]

    @staticmethod
    def of(component: PagedComponent, row: int, depth: int, count: int) -> "ExtendRow":
        """Row `row` of the table has `depth` tokens in memory and `count` new ones, whose keys are stored already."""
        table, window = component.table, component.window
        size, first = table.page_tokens, int(table.first[row])
        oldest = 0 if window is None else max(0, depth - window)
        columns = slice(oldest // size - first, (depth + count - 1) // size - first + 1)
        assert columns.start >= 0, f"row {row} lacks {table.component} pages from position {oldest}"
        index = table.head_blocks(row, columns, component.heads)
        base = oldest // size * size
        blocks = []
        for start in range(0, count, BLOCK_TOKENS):
            stop = min(start + BLOCK_TOKENS, count)
            key_start = 0 if window is None else max(0, depth + start - window)
            query_position = torch.arange(depth + start, depth + stop, device=index.device).unsqueeze(1)
            key_position = torch.arange(key_start, depth + stop, device=index.device)
            unseen = key_position > query_position
            if window is not None:
                unseen |= key_position < query_position - window
            hidden = torch.zeros(unseen.shape, dtype=component.dtype, device=index.device)
            hidden.masked_fill_(unseen, float("-inf"))
            blocks.append(QueryBlock(start, stop, key_start - base, depth + stop - base, hidden[None, None]))
        return ExtendRow(component.heads, index, tuple(blocks))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """query [count, query heads, dim]; key and value [heads, tokens, dim] are those of the pages of `index`."""
        out = torch.empty_like(query)
        sharing = query.shape[1] // self.heads
        for block in self.blocks:
            part = scaled_dot_product_attention(
                query[block.start : block.stop].transpose(0, 1).unsqueeze(0),
                key[:, block.key_start : block.key_stop].repeat_interleave(sharing, 0).unsqueeze(0),
                value[:, block.key_start : block.key_stop].repeat_interleave(sharing, 0).unsqueeze(0),
                attn_mask=block.hidden,
                scale=scale,
            )
            out[block.start : block.stop] = part[0].transpose(0, 1)
        return out.flatten(1)
