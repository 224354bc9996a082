"""What requests own: nothing half-taken, nothing leaked, the window kept exactly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.batch.holdings import Holdings
from segue.batch.request import Request
from segue.batch.reuse import Reuse
from segue.batch.sampling import SamplingParams
from segue.cache.shape import CacheShape
from segue.cache.tree import PrefixTree
from segue.errors import PoolExhausted
from segue.ids import Handle, RequestId
from segue.state.pool import Pool
from segue.state.spec import ComponentName
from segue.tokens import token_array
from tests.support.policies import SlotRecorder


def holdings(full: int, window: int, slots: int, *, page_tokens: int = 4, width: int = 6) -> Holdings:
    pools = {
        ComponentName.FULL: Pool("full", full + 1),
        ComponentName.WINDOW: Pool("window", window + 1),
        ComponentName.RECURRENT: Pool("recurrent", slots + 1),
    }
    return Holdings(pools, SlotRecorder(), page_tokens=page_tokens, window=width)


def request(handle: int = 1) -> Request:
    sampling = SamplingParams(seed=0, max_tokens=500)
    return Request(Handle(handle), RequestId(f"q{handle}"), 1, token_array(range(200)), sampling)


def test_a_refused_growth_leaks_no_page_of_the_component_that_had_room() -> None:
    held = holdings(full=10, window=2, slots=1)
    one = request()
    held.admit(one)
    with pytest.raises(PoolExhausted, match="window"):
        held.grow(one, 12)
    held.check([one])
    assert one.tables is not None
    assert one.tables.full == []


def test_a_refused_admission_leaks_no_slot() -> None:
    held = holdings(full=10, window=10, slots=1)
    one, two = request(1), request(2)
    held.admit(one)
    with pytest.raises(PoolExhausted, match="recurrent"):
        held.admit(two)
    assert two.tables is None
    held.check([one, two])


@given(
    width=st.integers(1, 20),
    page=st.integers(1, 9),
    steps=st.lists(st.integers(1, 15), min_size=1, max_size=12),
    floor=st.none() | st.integers(0, 60),
    floor_dropped_after=st.integers(0, 12),
)
def test_exactly_the_pages_that_meet_the_window_or_the_floor_stay(
    width: int, page: int, steps: list[int], floor: int | None, floor_dropped_after: int
) -> None:
    held = holdings(full=400, window=400, slots=1, page_tokens=page, width=width)
    one = request()
    held.admit(one)
    for number, count in enumerate(steps):
        if number == floor_dropped_after:
            floor = None
        held.grow(one, one.computed + count)
        one.computed += count
        held.free_out_of_window(one, floor)
        held.check([one])
        assert one.tables is not None
        tail = one.computed
        for index, unit in enumerate(one.tables.window):
            positions = range(index * page, min((index + 1) * page, tail))
            in_tail = any(tail - width <= p < tail for p in positions)
            in_floor = floor is not None and any(
                floor <= p < floor + width for p in range(index * page, (index + 1) * page)
            )
            assert (unit is not None) == (in_tail or in_floor)
    held.release(one)
    held.check([])


def test_a_refused_return_leaks_no_page_of_the_components_that_had_room() -> None:
    held = holdings(full=10, window=10, slots=1)
    running, away = request(1), request(2)
    held.admit(running)
    away.computed = 30
    with pytest.raises(PoolExhausted, match="recurrent"):
        held.readmit(away)
    assert away.tables is None
    held.check([running])
    held.release(running)
    held.readmit(away)
    assert away.tables is not None
    assert (len(away.tables.full), away.tables.window_first, len(away.tables.window)) == (8, 6, 8)
    held.check([away])


def test_a_matched_checkpoint_is_not_evicted_for_the_slot_that_is_to_be_its_copy() -> None:
    pools = {ComponentName.FULL: Pool("full", 60), ComponentName.RECURRENT: Pool("recurrent", 3)}
    shape = CacheShape(page_tokens=4, full=True, window=None, recurrent=True, grid=4, interval=4)
    slots = SlotRecorder()
    reuse = Reuse(PrefixTree(shape, pools, slots.release))
    held = Holdings(pools, slots, page_tokens=4, window=None, reuse=reuse)
    first = request(1)
    held.admit(first)
    held.grow(first, 200)
    first.computed = 196
    assert first.tables is not None
    assert first.tables.slot is not None
    slots.advance(first.tables.slot, 196)
    held.publish_ended(first, spare=lambda _: 0)
    held.release(first)
    held.check([])
    busy, again = request(2), request(3)
    busy.cache_salt = "another"
    held.admit(busy)
    with pytest.raises(PoolExhausted, match="recurrent"):
        held.admit(again)
    assert again.computed == 0
    held.check([busy])
    held.release(busy)
    held.admit(again)
    assert again.computed == 196
    figures = held.cache_figures()
    assert (figures.looked_up_tokens, figures.reused_tokens) == (3 * 200, 196), "who was refused looked up nothing"
    held.check([again])
