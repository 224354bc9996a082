"""Blocks move exactly the bytes of the named pages, in as few runs as there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.blocks import Places, batches, byte_count, check_bounds, cut_blocks, merge, sent_row
from kv_transfer.plan import ByteRun, Piece
from segue.errors import TransferRefused
from segue.handoff import Part, UnitRow
from segue.peering import ArenaMap, ArenaPart
from segue.state.spec import ComponentName

FULL, RECURRENT = ComponentName.FULL, ComponentName.RECURRENT
UNIT, COUNT = 8, 20


def arena(base: int = 0, unit_bytes: int = UNIT, units: int = COUNT) -> ArenaMap:
    parts = (
        ArenaPart(FULL, base, unit_bytes, units),
        ArenaPart(RECURRENT, base + units * unit_bytes, unit_bytes, units),
    )
    return ArenaMap(base + 2 * units * unit_bytes, parts)


def full_row(units: list[int], first: int = 0) -> UnitRow:
    return UnitRow(Part.STATE, FULL, first, tuple(units))


RUNS = {FULL: (ByteRun(0, 0, UNIT),), RECURRENT: (ByteRun(0, 0, UNIT),)}
page_lists = st.lists(st.integers(1, COUNT - 1), min_size=1, max_size=12, unique=True)


@given(page_lists, page_lists, st.integers(0, 3))
def test_blocks_move_the_bytes_that_page_by_page_copies_would(ours: list[int], theirs: list[int], base: int) -> None:
    count = min(len(ours), len(theirs))
    source, target = arena(), arena(base)
    from_bytes = np.random.default_rng(0).integers(0, 256, source.bytes, dtype=np.uint8)
    moved, copied = np.zeros(target.bytes, np.uint8), np.zeros(target.bytes, np.uint8)
    piece = Piece(Part.STATE, FULL, 0, count)
    blocks = cut_blocks([piece], RUNS, (Places([full_row(ours)]), source), (Places([full_row(theirs)]), target))
    check_bounds(blocks, source.bytes, target.bytes)
    for start, end, size in blocks.tolist():
        moved[end : end + size] = from_bytes[start : start + size]
    for one, other in zip(ours[:count], theirs[:count], strict=True):
        copied[base + other * UNIT : base + (other + 1) * UNIT] = from_bytes[one * UNIT : (one + 1) * UNIT]
    assert np.array_equal(moved, copied)


def test_neighbours_in_both_arenas_are_one_block_also_when_pools_hand_out_falling_numbers() -> None:
    rows = Places([full_row([9, 8, 7, 6])])
    blocks = cut_blocks([Piece(Part.STATE, FULL, 0, 4)], RUNS, (rows, arena()), (rows, arena()))
    assert blocks.tolist() == [[6 * UNIT, 6 * UNIT, 4 * UNIT]]


def test_neighbours_in_one_arena_only_stay_apart() -> None:
    source, target = Places([full_row([1, 2])]), Places([full_row([2, 1])])
    blocks = cut_blocks([Piece(Part.STATE, FULL, 0, 2)], RUNS, (source, arena()), (target, arena()))
    assert blocks.tolist() == [[UNIT, 2 * UNIT, UNIT], [2 * UNIT, UNIT, UNIT]]


def test_offsets_above_2_gib_are_exact() -> None:
    large = arena(unit_bytes=3 << 30)
    rows = Places([full_row([5, 3])])
    runs = {FULL: (ByteRun(1 << 30, 1 << 30, 1 << 20),)}
    blocks = cut_blocks([Piece(Part.STATE, FULL, 0, 2)], runs, (rows, large), (rows, large))
    assert blocks.tolist() == [[(10 << 30), (10 << 30), 1 << 20], [(16 << 30), (16 << 30), 1 << 20]]


def test_pages_count_from_the_prompts_start_on_both_sides() -> None:
    source, target = Places([sent_row(Part.STATE, FULL, [None, None, 5])]), Places([full_row([9], first=2)])
    blocks = cut_blocks([Piece(Part.STATE, FULL, 2, 3)], RUNS, (source, arena()), (target, arena()))
    assert blocks.tolist() == [[5 * UNIT, 9 * UNIT, UNIT]]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (full_row([1, 2]), r"full pages \[0, 3\) of the state are to travel, pages \[0, 2\) were promised"),
        (full_row([1, 2, 3], first=1), "were promised"),
        (full_row([1, 2, COUNT]), "units that are none of"),
        (full_row([1, 0, 2]), "units that are none of"),
        (UnitRow(Part.CHECKPOINT, FULL, 0, (1, 2, 3)), "were promised"),
    ],
)
def test_a_grant_that_does_not_cover_the_pages_is_refused_by_name(row: UnitRow, why: str) -> None:
    with pytest.raises(TransferRefused, match=why):
        Places([row]).units(Piece(Part.STATE, FULL, 0, 3), arena())


def test_a_page_that_is_out_of_the_window_cannot_be_sent() -> None:
    with pytest.raises(TransferRefused):
        Places([sent_row(Part.STATE, FULL, [3, None])]).units(Piece(Part.STATE, FULL, 0, 2), arena())


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 9)), max_size=8), st.integers(1, 12))
def test_batches_hold_the_same_bytes_in_order_and_none_is_too_large(
    rows: list[tuple[int, int, int]], bytes_max: int
) -> None:
    blocks = np.array(rows, dtype=np.int64).reshape(-1, 3)
    cut = list(batches(blocks, bytes_max))
    pairs = [(s + i, t + i) for batch in cut for s, t, size in batch.tolist() for i in range(size)]
    assert pairs == [(s + i, t + i) for s, t, size in rows for i in range(size)]
    assert all(0 < byte_count(batch) <= bytes_max for batch in cut)


def test_merging_nothing_gives_nothing() -> None:
    assert merge(np.empty((0, 3), dtype=np.int64)).shape == (0, 3)


@pytest.mark.parametrize("block", [[0, 0, 0], [-1, 0, 4], [0, 98, 4], [98, 0, 4]])
def test_a_block_outside_an_arena_is_our_bug(block: list[int]) -> None:
    with pytest.raises(AssertionError):
        check_bounds(np.array([block], dtype=np.int64), 100, 100)
