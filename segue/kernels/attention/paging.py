"""From page tables to index tensors: where a step writes keys and values, and which pages it reads; computes no
attention.

All of it is small integer work, done on the host; the device is given finished indices.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segue.batch.step import IntArray
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

    def token_rows(self, rows: IntArray, positions: IntArray, heads: int, block_rows: int) -> IntArray:
        """Where tokens lie: positions [rows, tokens] of the table's rows `rows` [rows] as rows of a layer's memory,
        [rows, heads, tokens].
        """
        index, offset = np.divmod(positions, self.page_tokens)
        pages = self.pages[rows[:, None], index - self.first[rows, None]]
        blocks = pages[:, None] * heads + np.arange(heads)[:, None]
        places: IntArray = blocks * block_rows + offset[:, None]
        return places

    def head_blocks(self, row: int, columns: slice, heads: int) -> Tensor:
        """The (page, head) blocks of one row's columns, by head; flat."""
        return self.tensor(self.pages[row, columns] * heads + np.arange(heads)[:, None])

    def tensor(self, values: IntArray) -> Tensor:
        """Indices for the device, flat."""
        return torch.from_numpy(values.reshape(-1)).to(self.device)


def write_rows(table: PageTable, tokens: TokenPlaces, heads: int, block_rows: int) -> Tensor:
    """Rows of a layer's memory in which the step's keys (or values) [T, heads, dim] are stored: [T * heads]."""
    return table.tensor(table.token_rows(tokens.rows, tokens.positions[:, None], heads, block_rows))
