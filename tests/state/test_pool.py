"""Pools: all or nothing, one owner, whole at every moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.errors import PoolExhausted
from segue.state.pool import Pool


def test_the_sink_is_never_handed_out() -> None:
    pool = Pool("full", 4)
    assert sorted(pool.alloc(3)) == [1, 2, 3]


def test_an_allocation_that_does_not_fit_takes_nothing_and_names_the_pool() -> None:
    pool = Pool("window", 3)
    pool.alloc(1)
    with pytest.raises(PoolExhausted, match="'window' has 1 free units, 2 wanted"):
        pool.alloc(2)
    assert pool.free_count == 1
    pool.check()


def test_freeing_what_is_not_held_is_our_bug() -> None:
    pool = Pool("full", 3)
    units = pool.alloc(1)
    pool.free(units)
    with pytest.raises(AssertionError, match="not held"):
        pool.free(units)


@given(st.lists(st.integers(0, 6), max_size=60))
def test_a_pool_stays_whole_whatever_is_taken_and_given_back(moves: list[int]) -> None:
    pool = Pool("full", 12)
    taken: list[list[int]] = []
    for move in moves:
        if move == 0 and taken:
            pool.free(taken.pop(0))
        else:
            try:
                taken.append(pool.alloc(move))
            except PoolExhausted:
                assert move > pool.free_count
        pool.check()
        counts = pool.counts()
        assert counts.held == sum(map(len, taken))
        assert counts.free + counts.held + counts.sink == counts.capacity
