"""Room kept for a request whose sender is called again: nobody else gets it, and nobody waits for it in vain."""

from dataclasses import replace

import pytest

from segue.batch.lifecycle import Phase
from segue.batch.ratio import RetractionRules
from segue.batch.request import Request
from segue.batch.role import Role
from segue.ids import Handle
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken
from tests.engine.test_receiving import reserve
from tests.engine.test_retraction import run, running
from tests.support.policies import EOS, Rig, rig, spec


def test_room_for_a_request_whose_sender_is_called_again_is_nobody_elses() -> None:
    made = rig(
        role=Role.DECODE, page_tokens=4, pages=22, backups=0, rules=RetractionRules(ratio_start=0.0, ratio_floor=0.0)
    )
    for handle in (Handle(1), Handle(2)):
        made.engine.expect(spec(f"q{handle}", 20, max_tokens=40), handle)
        made.engine.ask(handle, 1)
        made.step()
        (request,) = made.engine.take_promised()
        made.engine.receive(handle, 1, reserve(made, request), EmittedToken(9, 0.0), cached_tokens=0)
    _, second = made.engine.live_requests()
    made.take_off(second)
    made.engine.submit(spec("q3", 1, max_tokens=2), Handle(3))
    made.step()
    ((recalled, asked),) = made.engine.take_recalled()
    assert recalled is second
    assert asked.emitted == (9,)
    for _ in range(3):
        made.step()
        assert second.phase is Phase.AWAITING
        assert running(made, Phase.WAITING) == {Handle(3)}
    made.engine.ask(second.handle, 1)
    assert made.engine.take_promised() == [second]
    made.engine.receive(second.handle, 1, reserve(made, second), EmittedToken(8, 0.0), cached_tokens=7)
    assert [token.token_id for token in second.output] == [9, 8]
    assert second.cached_tokens == 0
    assert made.engine.status().retraction.recomputed_tokens == 20 - 7, "its sender had the rest in its cache"
    for number in (1, 2, 3):
        made.engine.cancel(Handle(number), 1)
    made.require_whole()


def with_one_recalled(running: int) -> tuple[Rig, Request]:
    """So many requests that decode, and will need more than is free, and one for which room is kept until it asks."""
    rules = RetractionRules(headroom_steps=1, ratio_start=0.0, ratio_floor=0.0)
    made = rig(role=Role.DECODE, page_tokens=4, pages=30, backups=0, cached=True, slots=12, rules=rules)
    for number in range(1, running + 2):
        handle = Handle(number)
        prompt = [(number * 20 + i) % 90 + 3 for i in range(12)]
        made.engine.expect(spec(f"q{number}", prompt, max_tokens=80, ignore_eos=True), handle)
        made.engine.ask(handle, 1)
        made.step()
        (request,) = made.engine.take_promised()
        made.engine.receive(handle, 1, reserve(made, request), EmittedToken(9, 0.0), cached_tokens=0)
    made.take_off(request)
    made.step()
    assert [one for one, _ in made.engine.take_recalled()] == [request]
    return made, request


def test_nobody_grows_into_room_that_is_kept_for_a_recalled_request_while_somebody_else_can_leave() -> None:
    made, recalled = with_one_recalled(running=2)
    pool = made.pools[ComponentName.FULL]
    fence = pool.alloc(pool.free_count, Owner.RESERVED)
    while not running(made, Phase.RETRACTED):
        made.step()
    assert len(running(made, Phase.DECODING)) == 1
    made.engine.ask(recalled.handle, 1)
    assert made.engine.take_promised() == [recalled]
    rows = reserve(made, recalled)
    made.engine.receive(recalled.handle, 1, rows, EmittedToken(8, 0.0), cached_tokens=0)
    pool.free(fence, Owner.RESERVED)
    for number in (1, 2, 3):
        made.engine.cancel(Handle(number), 1)
    made.require_whole()


def test_the_last_one_that_runs_takes_room_that_is_kept_for_others() -> None:
    made, recalled = with_one_recalled(running=1)
    pool = made.pools[ComponentName.FULL]
    fence = pool.alloc(pool.free_count, Owner.RESERVED)
    steps = made.engine.status().steps
    # It has its first pages set aside ahead.
    for _ in range(30):
        made.step()
    assert made.engine.status().steps == steps + 30, "it never waits"
    assert recalled.tables is None
    made.engine.cancel(recalled.handle, 1)
    pool.free(fence, Owner.RESERVED)
    run(made)
    made.require_whole()


@pytest.mark.parametrize("how", ["cancel", "deadline", "fall back", "last token"])
def test_room_that_is_kept_is_given_back_when_the_request_ends_or_is_computed_here(how: str) -> None:
    made, recalled = with_one_recalled(running=1)
    assert recalled.tables is not None
    assert len(recalled.tables.full) > 4
    made.engine.check()
    match how:
        case "cancel":
            made.engine.cancel(recalled.handle, 1)
        case "deadline":
            recalled.deadline = made.clock.now
            made.engine.expire()
        case "fall back":
            assert made.engine.fall_back(recalled.handle, 1)
        case _:
            recalled.sampling = replace(recalled.sampling, ignore_eos=False)
            assert made.engine.receive_last(recalled.handle, 1, EmittedToken(EOS, 0.0), 0) is not None
    assert recalled.tables is None
    made.engine.check()
    run(made)
    made.require_whole()


def run_and_leave(made: Rig, *numbers: int) -> None:
    """Runs on for a while; then the clients leave, and nothing is held."""
    for _ in range(30):
        made.step()
    for number in numbers:
        made.engine.cancel(Handle(number), 1)
    made.step()
    made.require_whole()


@pytest.mark.parametrize("steps", [0, 4])
def test_what_is_set_aside_is_room_that_was_found_whatever_headroom_is_configured(steps: int) -> None:
    """Room for fewer steps ahead than are set aside for a state that comes from elsewhere would not be enough."""
    rules = RetractionRules(headroom_steps=steps, ratio_start=0.0, ratio_floor=0.0)
    for pages in range(16, 30):
        made = rig(role=Role.DECODE, page_tokens=4, pages=pages, backups=0, slots=12, max_len=80, rules=rules)
        for handle in (Handle(1), Handle(2)):
            made.engine.expect(spec(f"q{handle}", 20, max_tokens=40), handle)
            made.engine.ask(handle, 1)
            made.step()
            for request in made.engine.take_promised():
                made.engine.receive(request.handle, 1, reserve(made, request), EmittedToken(9, 0.0), cached_tokens=0)
        for request in made.engine.live_requests()[1:]:
            if request.phase is Phase.DECODING:
                made.take_off(request)
        run_and_leave(made, 1, 2)


@pytest.mark.parametrize("steps", [0, 4])
def test_room_for_a_continuation_whose_beginning_was_evicted_is_room_for_what_is_set_aside(steps: int) -> None:
    rules = RetractionRules(headroom_steps=steps, ratio_start=0.0, ratio_floor=0.0)
    prompt = tuple(range(40, 60))
    for pages in range(16, 30):
        made = rig(
            role=Role.DECODE,
            components=frozenset({ComponentName.FULL, ComponentName.RECURRENT}),
            page_tokens=4,
            pages=pages,
            slots=9,
            cached=True,
            backups=0,
            rules=rules,
        )
        assert made.tree is not None
        made.engine.submit(spec("first", prompt, max_tokens=1), Handle(1))
        while made.engine.live_requests():
            made.step()
        made.engine.submit(spec("runs", 24, max_tokens=30, ignore_eos=True), Handle(2))
        for _ in range(10):
            made.step()
        going_on = spec("goes on", prompt, max_tokens=30, emitted=(5, 6, 7, 8))
        assert not made.engine.expect(going_on, Handle(3), extend_max=8)
        for name, pool in made.pools.items():
            made.tree.forest.evict(name, pool.capacity)
        run_and_leave(made, 2, 3)
