"""Paged attention equals its definition below, at and past a page, with and without a window, on poisoned memory.

Stored in 8 bits, keys and values are what the definition of the codes makes of them.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from segue.kernels.attention.component import PagedComponent
from segue.kernels.attention.extending import BLOCK_TOKENS, ExtendRow
from segue.kernels.attention.lengths import SplitBatch, batch_by_length, split
from segue.kernels.attention.paging import PageTable
from segue.kernels.attention.reference import attend
from segue.kernels.attention.stored import stored_key_values
from segue.kernels.memory import StateMemory
from segue.kernels.quantization.reference import dequantize, quantize
from segue.kernels.rows import TokenPlaces
from segue.kernels.scratch import Scratch
from segue.state.spec import ComponentName, DType
from tests.kernels.poisoned import UNITS, noise, paged_memory

HEADS, SHARING, DIM, SCALE = 2, 3, 16, 0.2
LAYER = 1
KV_DTYPES = [None, DType.FLOAT8_E4M3]


class StoredSequences:
    """Sequences of known keys and values, stored in scattered pages; pages wholly before the window are the sink."""

    def __init__(
        self, lengths: list[int], page_tokens: int, window: int | None, kv_dtype: DType | None, dim: int = DIM
    ) -> None:
        self.memory, self.dim, self.window = paged_memory(HEADS, dim, page_tokens, kv_dtype), dim, window
        columns = -(-max(lengths) // page_tokens)
        order = torch.randperm(UNITS - 1, generator=torch.Generator().manual_seed(1)) + 1
        pages = np.zeros((len(lengths), columns), np.int64)
        free = iter(order.tolist())
        for row, length in enumerate(lengths):
            for column in range(-(-length // page_tokens)):
                pages[row, column] = next(free)
        self.component = PagedComponent(
            memory=self.memory,
            scratch=Scratch(),
            table=PageTable(
                ComponentName.FULL, pages, np.zeros(len(lengths), np.int64), page_tokens, torch.device("cpu")
            ),
            heads=HEADS,
            sharing=SHARING,
            window=window,
            dtype=torch.float32,
        )
        self.texts = []
        for row, length in enumerate(lengths):
            oldest = 0 if window is None else max(0, length - 1 - window)
            key, value = (noise(length, HEADS, dim, seed=length + part) for part in (0, 500))
            places = TokenPlaces(np.full(length - oldest, row), np.arange(oldest, length))
            stored_key_values(self.component, places, LAYER).write(LAYER, key[oldest:], value[oldest:])
            self.texts.append((key, value) if kv_dtype is None else (rounded(key), rounded(value)))

    def decode(self, lengths: list[int], query: Tensor) -> Tensor:
        places = TokenPlaces(np.arange(len(lengths)), np.array(lengths) - 1)
        return stored_key_values(self.component, places, LAYER).batch(places).attend(LAYER, query, SCALE)

    def extend(self, depth: int, query: Tensor) -> Tensor:
        """Queries of the first sequence, from `depth` to its end."""
        places = TokenPlaces(np.zeros(len(query), np.int64), np.arange(depth, depth + len(query)))
        row = ExtendRow.of(self.component, 0, depth, len(query))
        gathered = stored_key_values(self.component, places, LAYER).gather(LAYER, row.index)
        return row.attend(query, *gathered, SCALE)

    def within(self, window: int | None) -> "StoredSequences":
        """The same memory, of which queries see a window only."""
        self.window, self.component = window, replace(self.component, window=window)
        return self

    def forget_before(self, depth: int) -> None:
        """Loses what the first query does not see, which a sliding layer may have given up."""
        if self.window is None or depth <= self.window:
            return
        gone = torch.full((depth - self.window, HEADS, self.dim), float("nan"))
        places = TokenPlaces(np.zeros(len(gone), np.int64), np.arange(len(gone)))
        stored_key_values(self.component, places, LAYER).write(LAYER, gone, gone)

    def wanted(self, row: int, query: Tensor) -> Tensor:
        """The definition's answer to queries at the end of a sequence."""
        key, value = self.texts[row]
        start = len(key) - len(query)
        return attend(query, key, value, start=start, scale=SCALE, window=self.window).flatten(1)


def rounded(x: Tensor) -> Tensor:
    """What 8 bits hold of x."""
    return dequantize(*quantize(x))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("page_tokens", [1, 4, 16])
@pytest.mark.parametrize("window", [None, 1, 4, 6, 100])
def test_decode_rows_of_mixed_lengths_equal_the_definition(
    page_tokens: int, window: int | None, kv_dtype: DType | None
) -> None:
    lengths = [1, 4, 5, 13] if page_tokens == 1 else [1, 15, 16, 17, 64]
    stored = StoredSequences(lengths, page_tokens, window, kv_dtype)
    # Strided, as a slice of a wider projection is.
    query = noise(len(lengths), HEADS * SHARING + 4, DIM)[:, 2:-2]
    wanted = torch.cat([stored.wanted(row, query[row : row + 1]) for row in range(len(lengths))])
    torch.testing.assert_close(stored.decode(lengths, query), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [None, 6, 30])
def test_rows_that_are_attended_in_parts_equal_the_definition(window: int | None, kv_dtype: DType | None) -> None:
    lengths = [3, 64, 1, 20, 33, 2, 64]
    stored = StoredSequences(lengths, 16, window, kv_dtype)
    query = noise(len(lengths), HEADS * SHARING, DIM)
    places = TokenPlaces(np.arange(len(lengths)), np.array(lengths) - 1)
    batch = batch_by_length(
        stored_key_values(stored.component, places, LAYER), places, window, torch.device("cpu"), spared_min=1
    )
    assert isinstance(batch, SplitBatch)
    wanted = torch.cat([stored.wanted(row, query[row : row + 1]) for row in range(len(lengths))])
    torch.testing.assert_close(batch.attend(LAYER, query, SCALE), wanted, rtol=0, atol=1e-5)


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=40), spared_min=st.sampled_from([1, 100, 4096, 10**9])
)
def test_parts_have_every_row_once_and_none_that_is_not_worth_it(lengths: list[int], spared_min: int) -> None:
    parts = split(np.array(lengths), spared_min)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    padded = sum(len(part) * max(lengths[row] for row in part) for part in parts)
    assert len(lengths) * max(lengths) - padded >= (len(parts) - 1) * spared_min
    if spared_min == 1:
        assert all(2 * min(lengths[row] for row in part) >= max(lengths[row] for row in part) for part in parts)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("page_tokens", [4, 16])
@pytest.mark.parametrize("window", [None, 1, 6, 30])
@pytest.mark.parametrize(("depth", "count"), [(0, 1), (0, 37), (15, 1), (16, 17), (5, 40)])
def test_an_extended_row_equals_the_definition(
    page_tokens: int, window: int | None, depth: int, count: int, kv_dtype: DType | None
) -> None:
    stored = StoredSequences([depth + count], page_tokens, None, kv_dtype).within(window)
    stored.forget_before(depth)
    query = noise(count, HEADS * SHARING, DIM)
    torch.testing.assert_close(stored.extend(depth, query), stored.wanted(0, query), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_row_longer_than_a_block_of_queries_equals_the_definition(kv_dtype: DType | None) -> None:
    count = BLOCK_TOKENS + 3
    stored = StoredSequences([count], 16, None, kv_dtype)
    query = noise(count, HEADS * SHARING, DIM)
    torch.testing.assert_close(stored.extend(0, query), stored.wanted(0, query), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("page_tokens", [1, 3, 4])
@pytest.mark.parametrize("dim", [1, 15, 24, 80, 96])
def test_heads_of_any_size_have_a_place_in_a_page(dim: int, page_tokens: int, kv_dtype: DType | None) -> None:
    lengths = [5, 9]
    stored = StoredSequences(lengths, page_tokens, None, kv_dtype, dim)
    query = noise(9, HEADS * SHARING, dim)
    wanted = torch.cat([stored.wanted(row, query[row : row + 1]) for row in range(2)])
    torch.testing.assert_close(stored.decode(lengths, query[:2]), wanted, rtol=0, atol=1e-5)
    torch.testing.assert_close(stored.extend(0, query[:5]), stored.wanted(0, query[:5]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_codes_are_read_in_the_type_that_is_computed_in(dtype: torch.dtype) -> None:
    stored = StoredSequences([33], 16, None, DType.FLOAT8_E4M3)
    stored.component = replace(stored.component, dtype=dtype)
    query = noise(33, HEADS * SHARING, DIM).to(dtype)
    wanted = stored.wanted(0, query)
    for found, rows in ((stored.decode([33], query[-1:]), slice(-1, None)), (stored.extend(0, query), slice(None))):
        assert found.dtype is dtype
        torch.testing.assert_close(found, wanted[rows], rtol=0.02, atol=0.05)


def test_sums_over_codes_that_fp16_cannot_hold_are_right() -> None:
    lengths = [1, 15, 33]
    stored = StoredSequences(lengths, 16, None, DType.FLOAT8_E4M3)
    stored.component = replace(stored.component, dtype=torch.float16)
    query = noise(3, HEADS * SHARING, DIM).to(torch.float16) * 200
    wanted = torch.cat([stored.wanted(row, query[row : row + 1]) for row in range(3)])
    torch.testing.assert_close(stored.decode(lengths, query), wanted, rtol=0.002, atol=0.002)


def test_vectors_that_no_whole_block_stride_holds_have_no_rows() -> None:
    whole = torch.zeros(3, 2, 100)[:, :, :15].view(3, 2, 5, 3)
    assert StateMemory.of(whole).rows is None
