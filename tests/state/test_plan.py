"""The memory plan: a budget becomes units, with a reason each; nothing of use is left over, too little is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.cache.shape import CacheShape
from segue.errors import ConfigError
from segue.state.layout import Shard, layouts
from segue.state.needs import SLOTS_EACH, page_count, window_pages_max
from segue.state.plan import MemoryPlan, plan_memory
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from tests.state.test_layout import small_state

FULL, WINDOW, RECURRENT = ComponentName
PAGE, INTERVAL = 4, 64


def state_of(*components: ComponentName, window: int = 6) -> ModelState:
    """One small layer for each."""
    reach = {WINDOW: window}
    tensors = [
        StateTensor(layer, "state", component, 2, (8,), DType.FLOAT32, reach.get(component))
        for layer, component in enumerate(components)
    ]
    return ModelState.of(tensors)


def planned(state: ModelState, budget_bytes: int, *, cached: bool = True, max_len: int = 40) -> MemoryPlan:
    shape = None
    if cached:
        shape = CacheShape(
            page_tokens=PAGE,
            full=state.component(FULL) is not None,
            window=state.window,
            recurrent=state.component(RECURRENT) is not None,
            grid=INTERVAL,
            interval=INTERVAL,
        )
    units = layouts(state, PAGE, Shard())
    return plan_memory(
        state, units, budget_bytes=budget_bytes, max_running=4, step_tokens=32, max_len=max_len, cached=shape
    )


def used(plan: MemoryPlan) -> int:
    return sum(line.bytes for line in plan.lines)


def one_more(state: ModelState) -> int:
    """Bytes that one more cached prefix takes."""
    units = {FULL: INTERVAL // PAGE, WINDOW: page_count(max(1, state.window or 0), PAGE), RECURRENT: 1}
    return sum(units[layout.component] * layout.unit_bytes for layout in layouts(state, PAGE, Shard()))


def test_the_plan_adds_up_and_prints_why() -> None:
    plan = planned(small_state(), 2 << 20, cached=False, max_len=10_000)
    assert used(plan) <= plan.budget_bytes
    assert plan.counts[RECURRENT] == 5
    assert plan.counts[WINDOW] >= 4 * window_pages_max(6, 1, PAGE)
    text = str(plan)
    for word in ("full", "window", "recurrent", "unused", "4 running"):
        assert word in text


def test_a_window_longer_than_any_request_takes_no_more_pages_than_the_request() -> None:
    plan = planned(small_state(window=10_000), 2 << 20, cached=False)
    assert plan.counts[WINDOW] == 4 * 10 + (8 + 4) + 1


@pytest.mark.parametrize("cached", [False, True])
def test_a_budget_that_holds_no_request_is_refused_with_both_figures(cached: bool) -> None:
    with pytest.raises(ConfigError, match=r"too little.*raise engine\.state_bytes"):
        planned(small_state(), 1 << 14, cached=cached, max_len=10_000)


def test_what_nobody_running_can_need_keeps_checkpoints_with_all_that_they_need() -> None:
    state = small_state()
    plan = planned(state, 2 << 20)
    more = plan.counts[RECURRENT] - (SLOTS_EACH * 4 + 1)
    assert more > 100
    assert plan.counts[FULL] == 4 * 10 + 1 + 16 * more
    bare = planned(state, used(plan) - more * one_more(state))
    assert bare.counts[RECURRENT] == SLOTS_EACH * 4 + 1
    assert plan.counts[WINDOW] == bare.counts[WINDOW] + 2 * more
    for units in (1, 2, 16):
        assert f"; {units} for each of {more:,} more cached checkpoints" in str(plan)


def test_without_a_cache_what_nobody_running_can_need_is_unused() -> None:
    plan = planned(small_state(), 2 << 20, cached=False)
    assert plan.counts == planned(small_state(), 4 << 20, cached=False).counts
    assert "more cached" not in str(plan)


@pytest.mark.parametrize("components", [(FULL,), (FULL, WINDOW), (WINDOW,), (WINDOW, RECURRENT), (RECURRENT,)])
def test_every_kind_of_model_keeps_more_with_more_memory(components: tuple[ComponentName, ...]) -> None:
    less, more = (planned(state_of(*components), size) for size in (1 << 20, 2 << 20))
    assert all(more.counts[component] > less.counts[component] for component in components)
    what = "checkpoints" if RECURRENT in components else "prefixes"
    assert f"more cached {what}" in str(less)


def test_a_window_of_one_token_that_sees_nothing_past_is_planned() -> None:
    assert planned(state_of(WINDOW, window=0), 1 << 20).counts[WINDOW] > 100


@given(
    st.sampled_from([(FULL,), (FULL, WINDOW), (FULL, RECURRENT), (FULL, WINDOW, RECURRENT)]),
    st.integers(200_000, 1 << 20),
    st.integers(0, 200),
    st.integers(PAGE, 300),
)
def test_the_budget_is_kept_and_no_more_than_one_cached_prefix_is_left(
    components: tuple[ComponentName, ...], budget_bytes: int, window: int, max_len: int
) -> None:
    state = state_of(*components, window=window)
    plan = planned(state, budget_bytes, max_len=max_len)
    assert used(plan) <= budget_bytes
    assert budget_bytes - used(plan) < one_more(state)
    # A request of full length always fits.
    assert plan.counts[FULL] > page_count(max_len, PAGE)
