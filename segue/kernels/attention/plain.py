"""Keys and values stored as the numbers that were computed.

To decode, keys are gathered token by token; values are not: a bag sums rows of the memory where they lie.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.attention.component import PagedComponent
from segue.kernels.attention.decoding import SeenPositions
from segue.kernels.attention.paging import write_rows
from segue.kernels.rows import TokenPlaces


@dataclass(frozen=True, slots=True)
class PlainBatch:
    """Which rows of the layers' memory each row of a decode batch sees."""

    component: PagedComponent
    key_rows: Tensor  # [rows * heads * tokens] int64
    value_rows: Tensor  # [rows * query heads * tokens] int64: the same for every query head
    bags: Tensor  # [rows * query heads] int64: where each query head's part of `value_rows` starts
    hidden: Tensor  # [rows * heads, 1, tokens]: 0, or -inf where a row has fewer tokens

    def attend(self, layer: int, query: Tensor, scale: float) -> Tensor:
        memory, scratch = self.component.memory, self.component.scratch
        keys, values = memory.get(layer, "k").vectors, memory.get(layer, "v").vectors
        blocks, _, tokens = self.hidden.shape
        dim = query.shape[2]
        key = scratch.gather("keys", keys, self.key_rows, (blocks, tokens, dim))
        # Query heads that share a kv head stand where a sequence of queries would.
        scores = torch.baddbmm(self.hidden, query.reshape(blocks, -1, dim), key.transpose(1, 2), alpha=scale)
        weights = torch.softmax(scores, -1).flatten()
        out: Tensor = torch.embedding_bag(values, self.value_rows, self.bags, False, 0, False, weights)[0]
        return out.view(query.shape[0], -1)


@dataclass(frozen=True, slots=True)
class PlainKeyValues:
    """One component's keys and values in a step, in the compute dtype."""

    component: PagedComponent
    block_rows: int
    written: Tensor

    @staticmethod
    def of(component: PagedComponent, tokens: TokenPlaces, layer: int) -> "PlainKeyValues":
        """`tokens` are those of the step; `layer` is any of the component's."""
        block_rows = component.memory.get(layer, "k").block_rows
        return PlainKeyValues(component, block_rows, write_rows(component.table, tokens, component.heads, block_rows))

    def write(self, layer: int, key: Tensor, value: Tensor) -> None:
        memory = self.component.memory
        memory.get(layer, "k").vectors.index_copy_(0, self.written, key.flatten(0, 1))
        memory.get(layer, "v").vectors.index_copy_(0, self.written, value.flatten(0, 1))

    def batch(self, tokens: TokenPlaces) -> PlainBatch:
        heads, table, sharing = self.component.heads, self.component.table, self.component.sharing
        seen = SeenPositions.of(tokens, self.component.window)
        rows = table.token_rows(tokens.rows, seen.positions, heads, self.block_rows)
        return PlainBatch(
            self.component,
            table.tensor(rows),
            table.tensor(rows.repeat(sharing, 1)),
            torch.arange(0, rows.size * sharing, rows.shape[2], device=table.device),
            seen.mask(heads, self.component.dtype, table.device),
        )

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        heads, scratch = self.component.heads, self.component.scratch
        keys, values = (self.component.memory.get(layer, name) for name in ("k", "v"))
        shape = (heads, blocks.shape[0] // heads * self.component.table.page_tokens, keys.whole.shape[-1])
        key = scratch.gather("keys", keys.blocks, blocks, shape)
        return key, scratch.gather("values", values.blocks, blocks, shape)
