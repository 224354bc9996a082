"""From page tables to index tensors: where a step writes keys and values, and which pages it reads; computes no
attention.

All of it is small integer work, done on the host; the device is given finished indices.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.batch.step import IntArray
from segue.ids import SINK
from segue.kernels.rows import TokenPlaces
from segue.runner.context import StepContext
from segue.state.spec import ComponentName


@dataclass(frozen=True, slots=True)
class PageTable:
    """One component's page tables in a step: column j of row r holds the page of index first[r] + j."""

    component: ComponentName
    pages: IntArray  # [R, columns]
    first: IntArray  # [R]
    page_tokens: int
    device: torch.device

    @staticmethod
    def of(step: StepContext, component: ComponentName) -> "PageTable":
        if component is ComponentName.FULL:
            pages, first = step.full_pages, np.zeros(step.row_count, np.int64)
        else:
            assert component is ComponentName.WINDOW
            pages, first = step.window_pages, np.array(step.window_first, np.int64)
        return PageTable(component, pages.numpy(force=True), first, step.page_tokens, pages.device)

    def head_blocks(self, pages: IntArray, heads: int) -> Tensor:
        """Numbers of the (page, head) blocks that hold pages [rows, columns], by row, head and column; flat."""
        blocks = pages[:, None] * heads + np.arange(heads)[:, None]
        return torch.from_numpy(blocks.reshape(-1)).to(self.device)


@dataclass(frozen=True, slots=True)
class WritePlaces:
    """Where each token of a step, head after head, is stored."""

    block: Tensor  # [T * heads] int64: numbers of the (page, head) blocks
    offset: Tensor  # [T * heads] int64: the token's place in its page

    @staticmethod
    def of(table: PageTable, tokens: TokenPlaces, heads: int) -> "WritePlaces":
        index, offset = np.divmod(tokens.positions, table.page_tokens)
        pages = table.pages[tokens.rows, index - table.first[tokens.rows]]
        return WritePlaces(
            table.head_blocks(pages[:, None], heads), torch.from_numpy(offset.repeat(heads)).to(table.device)
        )

    def write(self, memory: Tensor, values: Tensor) -> None:
        """Stores values [T, heads, dim] in memory [pages, heads, page tokens, dim]."""
        size, dim = memory.shape[2:]
        memory.view(-1, size, dim).index_put_((self.block, self.offset), values.reshape(-1, dim))


def clear_new_pages(step: StepContext, table: PageTable) -> None:
    """Clears every page that this step begins and does not fill.

    A page may still hold another tenant's bytes behind the last token. Readers take whole pages and give what is
    past the end no weight, which helps only against finite bytes (a weight of zero times NaN is NaN).
    """
    size, starts = table.page_tokens, step.row_starts
    for row, depth in enumerate(step.depths):
        end = depth + starts[row + 1] - starts[row]
        if end % size and end // size * size >= depth:
            page = int(table.pages[row, end // size - table.first[row]])
            assert page != SINK, f"row {row} has no {table.component} page for position {end - 1}"
            step.storage.zero(table.component, page)


def blocks_of(memory: Tensor) -> Tensor:
    """Memory [pages, heads, page tokens, dim] as its (page, head) blocks [pages * heads, page tokens * dim]."""
    return memory.view(-1, memory.shape[2] * memory.shape[3])
