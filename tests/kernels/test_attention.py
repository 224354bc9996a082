"""Paged attention equals its definition below, at and past a page, with and without a window, on poisoned memory."""

import numpy as np
import pytest
import torch
from torch import Tensor

from segue.kernels.attention.decoding import DecodeBatch, DecodeShape
from segue.kernels.attention.extending import BLOCK_TOKENS, ExtendRow
from segue.kernels.attention.paging import PageTable, write_rows
from segue.kernels.attention.reference import attend
from segue.kernels.memory import StateMemory
from segue.kernels.rows import TokenPlaces
from segue.kernels.scratch import Scratch
from segue.state.spec import ComponentName
from tests.kernels.poisoned import UNITS, noise, paged_memory

HEADS, SHARING, DIM, SCALE = 2, 3, 16, 0.2


class StoredSequences:
    """Sequences of known keys and values, stored in scattered pages; pages wholly before the window are the sink."""

    def __init__(self, lengths: list[int], page_tokens: int, window: int | None) -> None:
        self.keys, self.values = paged_memory(HEADS, DIM, page_tokens)
        self.texts = [(noise(n, HEADS, DIM, seed=n), noise(n, HEADS, DIM, seed=n + 500)) for n in lengths]
        columns = -(-max(lengths) // page_tokens)
        order = torch.randperm(UNITS - 1, generator=torch.Generator().manual_seed(1)) + 1
        pages = np.zeros((len(lengths), columns), np.int64)
        free = iter(order.tolist())
        for row, length in enumerate(lengths):
            for column in range(-(-length // page_tokens)):
                pages[row, column] = next(free)
        self.table = PageTable(
            ComponentName.FULL, pages, np.zeros(len(lengths), np.int64), page_tokens, torch.device("cpu")
        )
        for row, (key, value) in enumerate(self.texts):
            oldest = 0 if window is None else max(0, len(key) - 1 - window)
            positions = np.arange(oldest, len(key))
            places = TokenPlaces(np.full(len(positions), row), positions)
            rows = write_rows(self.table, places, HEADS, self.keys.block_rows)
            self.keys.vectors[rows] = key[oldest:].flatten(0, 1)
            self.values.vectors[rows] = value[oldest:].flatten(0, 1)
        self.window = window

    def wanted(self, row: int, query: Tensor) -> Tensor:
        """The definition's answer to queries at the end of a sequence."""
        key, value = self.texts[row]
        start = len(key) - len(query)
        return attend(query, key, value, start=start, scale=SCALE, window=self.window).flatten(1)


@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 4, 6, 100])
def test_decode_rows_of_mixed_lengths_equal_the_definition(page_tokens: int, window: int | None) -> None:
    lengths = [1, 4, 5, 13] if page_tokens == 1 else [1, 15, 16, 17, 64]
    stored = StoredSequences(lengths, page_tokens, window)
    places = TokenPlaces(np.arange(len(lengths)), np.array(lengths) - 1)
    shape = DecodeShape(heads=HEADS, sharing=SHARING, window=window, block_rows=stored.keys.block_rows)
    batch = DecodeBatch.of(stored.table, places, shape, torch.float32)
    # Strided, as a slice of a wider projection is.
    query = noise(len(lengths), HEADS * SHARING + 4, DIM)[:, 2:-2]
    out = batch.attend(query, stored.keys.vectors, stored.values.vectors, SCALE, Scratch())
    wanted = torch.cat([stored.wanted(row, query[row : row + 1]) for row in range(len(lengths))])
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("page_tokens", [4, 16])
@pytest.mark.parametrize("window", [None, 1, 6, 30])
@pytest.mark.parametrize(("depth", "count"), [(0, 1), (0, 37), (15, 1), (16, 17), (5, 40)])
def test_an_extended_row_equals_the_definition(page_tokens: int, window: int | None, depth: int, count: int) -> None:
    stored = StoredSequences([depth + count], page_tokens, None)
    _forget_before(stored, depth, window)
    row = ExtendRow.of(stored.table, 0, depth, count, HEADS, window, torch.float32)
    query = noise(count, HEADS * SHARING, DIM)
    out = row.attend(query, stored.keys.blocks, stored.values.blocks, SCALE, Scratch())
    stored.window = window
    torch.testing.assert_close(out, stored.wanted(0, query), rtol=0, atol=1e-5)


def test_a_row_longer_than_a_block_of_queries_equals_the_definition() -> None:
    count = BLOCK_TOKENS + 3
    stored = StoredSequences([count], 16, None)
    query = noise(count, HEADS * SHARING, DIM)
    row = ExtendRow.of(stored.table, 0, 0, count, HEADS, None, torch.float32)
    out = row.attend(query, stored.keys.blocks, stored.values.blocks, SCALE, Scratch())
    torch.testing.assert_close(out, stored.wanted(0, query), rtol=0, atol=1e-5)


def test_vectors_that_no_whole_block_stride_holds_have_no_rows() -> None:
    whole = torch.zeros(3, 2, 100)[:, :, :15].view(3, 2, 5, 3)
    assert StateMemory.of(whole).rows is None


def _forget_before(stored: StoredSequences, depth: int, window: int | None) -> None:
    """Loses what the first query does not see, which a sliding layer may have given up."""
    if window is None or depth <= window:
        return
    gone = np.arange(depth - window)
    rows = write_rows(stored.table, TokenPlaces(np.zeros_like(gone), gone), HEADS, stored.keys.block_rows)
    stored.keys.vectors[rows] = float("nan")
    stored.values.vectors[rows] = float("nan")
