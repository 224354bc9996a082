"""What the attention layers of one component have in common in one step, however they store keys and values."""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.attention.paging import PageTable
from segue.kernels.interface import AttentionMemory
from segue.kernels.memory import MemoryViews
from segue.kernels.scratch import Scratch
from segue.runner.context import StepContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedComponent:
    """`sharing` query heads share one of `heads` kv heads; `dtype` is what is computed in."""

    memory: MemoryViews
    scratch: Scratch
    table: PageTable
    heads: int
    sharing: int
    window: int | None
    dtype: torch.dtype

    @staticmethod
    def of(
        step: StepContext, memory: MemoryViews, scratch: Scratch, layer: AttentionMemory, query: Tensor, key: Tensor
    ) -> "PagedComponent":
        """That of one of its layers, with the layer's queries and keys [T, heads, dim]."""
        return PagedComponent(
            memory=memory,
            scratch=scratch,
            table=PageTable.of(step, layer.component),
            heads=key.shape[1],
            sharing=query.shape[1] // key.shape[1],
            window=layer.window,
            dtype=query.dtype,
        )
