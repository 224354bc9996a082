"""Prompts whose cached beginning is here: computed here or sent, by what the engine's own steps and handoffs cost."""

import pytest

from segue.batch.lifecycle import Phase
from segue.batch.request import FinishReason
from segue.batch.suffix_costs import RECENT, Rule
from segue.cache.figures import ChosenPrompts
from segue.ids import Handle
from segue.state.spec import ComponentName
from tests.support.policies import Rig, rig, spec

PROMPT = tuple(range(2, 26))
H1, H2, H3 = Handle(1), Handle(2), Handle(3)


def with_cached_prompt() -> Rig:
    """Resumable after 16 of its 24 tokens."""
    made = rig(cached=True, max_running=1)
    made.engine.submit(spec("first", PROMPT, max_tokens=1, ignore_eos=True), H1)
    while made.engine.live_requests():
        made.step()
    return made


def step(made: Rig, seconds: float) -> None:
    """One step that takes so long."""
    record = made.engine.launch()
    assert record is not None
    made.clock.now += seconds
    made.engine.commit(record)


def test_an_engine_measures_its_own_steps() -> None:
    made = rig(chunk_tokens=8)
    made.engine.submit(spec("a", PROMPT, max_tokens=9, ignore_eos=True), H1)
    step(made, 0.4)
    assert made.engine.costs.extend_s(1, 0) == pytest.approx(0.05)
    for _ in range(3):
        step(made, 0.4)
    made.engine.submit(spec("b", PROMPT, max_tokens=9, ignore_eos=True), H2)
    step(made, 0.8)
    # Beside a request that decodes, in 0.4 s a step: eight tokens have taken the other half.
    assert made.engine.costs.extend_s(1, 0) == pytest.approx(0.05)


@pytest.mark.parametrize(("sent_s", "here"), [(0.001, False), (60.0, True)])
def test_a_short_end_is_computed_where_it_costs_less(sent_s: float, here: bool) -> None:
    made = with_cached_prompt()
    made.engine.costs.stepped(1.0, 100, beside=False)
    for known in range(10, 10 + RECENT):
        made.engine.costs.handed_over(sent_s, known, 0)
    assert made.engine.expect(spec("a", PROMPT), H2, extend_max=8, by=Rule.COST) is not here
    role = "decode" if here else "prefill"
    assert made.engine.status().cache.prompts == (ChosenPrompts(role, "cheaper", 1),)


def test_an_end_that_has_lost_its_beginning_goes_to_prefill_after_all() -> None:
    made = with_cached_prompt()
    made.engine.submit(spec("runs", (*PROMPT[:3], 90), max_tokens=30, ignore_eos=True), H2)
    made.step()
    assert not made.engine.expect(spec("waits", PROMPT), H3, extend_max=8)
    assert made.tree is not None
    for name, pool in made.pools.items():
        made.tree.forest.evict(name, pool.capacity)
    made.engine.cancel(H2, 1)
    made.step()
    (waits,) = made.engine.live_requests()
    assert waits.phase is Phase.AWAITING
    ((recalled, asked),) = made.engine.take_recalled()
    assert recalled is waits
    assert asked == waits.origin
    # No room is kept for it: it stands in line when its sender asks, like one that was never to be computed here.
    made.engine.submit(spec("next", PROMPT, max_tokens=30, ignore_eos=True), H2)
    made.step()
    made.engine.ask(H3, 1)
    made.step()
    assert made.engine.take_promised() == []
    made.engine.cancel(H2, 1)
    made.step()
    assert made.engine.take_promised() == [waits]
    made.engine.cancel(H3, 1)
    assert [ended.reason for ended in made.engine.take_ended()][-1] is FinishReason.CANCELLED
    while made.engine.live_requests():
        made.step()
    made.require_whole()


def test_an_end_that_has_lost_a_part_within_the_bound_is_computed_here() -> None:
    made = with_cached_prompt()
    assert not made.engine.expect(spec("a", PROMPT), H2, extend_max=24)
    assert made.tree is not None
    made.tree.forest.evict(ComponentName.RECURRENT, 8)
    made.step()
    (request,) = made.engine.live_requests()
    assert request.phase is Phase.EXTENDING
    assert request.cached_tokens == 0
