"""Prompts computed for others: nobody starts before its receiver has room, and state stays whole while it is read."""

import pytest

from segue.batch.lifecycle import Phase
from segue.batch.request import FinishReason
from segue.batch.role import Role
from segue.ids import Handle, WorkerId
from tests.support.policies import EOS, Rig, rig, spec

A, B = WorkerId("a"), WorkerId("b")
H1, H2, H3 = Handle(1), Handle(2), Handle(3)


def due(made: Rig) -> list[int]:
    return [request.handle for request in made.engine.take_due()]


def running(made: Rig) -> list[str]:
    return [row.request.request_id for row in made.runner.plans[-1].rows] if made.runner.plans else []


def test_a_prompt_starts_only_when_its_receiver_has_room() -> None:
    made = rig(role=Role.PREFILL)
    made.engine.submit_for(A, spec("a"), H1)
    made.step()
    assert made.runner.plans == []
    assert all(pool.held == 0 for pool in made.engine.status().pools)
    assert due(made) == [1]
    assert due(made) == []
    assert made.engine.grant(H1, 1)
    made.step()
    assert running(made) == ["a"]


def test_a_receiver_without_room_blocks_no_other() -> None:
    made = rig(role=Role.PREFILL, asks_ahead=1, max_running=1)
    for handle, receiver in ((H1, A), (H2, A), (H3, B)):
        made.engine.submit_for(receiver, spec(f"q{handle}", max_tokens=5), handle)
    assert due(made) == [1, 3]
    made.engine.grant(H3, 1)
    made.step()
    assert running(made) == ["q3"]


def test_for_an_output_that_has_begun_its_receiver_is_asked_however_many_wait_there() -> None:
    made = rig(role=Role.PREFILL, asks_ahead=1)
    made.engine.submit_for(A, spec("new", max_tokens=5), H1)
    assert due(made) == [1]
    made.engine.submit_for(A, spec("next", max_tokens=5), H2)
    made.engine.submit_for(A, spec("begun", max_tokens=5, emitted=(4, 5)), H3)
    assert due(made) == [3], "the receiver may keep room for it, and give none to those before it"
    made.engine.grant(H3, 1)
    made.step()
    assert running(made) == ["begun"]


def test_nobody_is_asked_for_a_prompt_that_has_no_room_here() -> None:
    made = rig(role=Role.PREFILL, pages=8, max_len=64, asks_ahead=9)
    made.engine.submit_for(A, spec("big", 28), H1)
    made.engine.submit_for(A, spec("b", 8), H2)
    assert due(made) == [1, 2]
    made.engine.grant(H1, 1)
    made.engine.submit_for(A, spec("c", 8), H3)
    assert due(made) == [], "what was granted counts as if it ran"


def test_a_prompt_takes_its_own_length_and_not_its_output_s() -> None:
    made = rig(role=Role.PREFILL, pages=4, max_len=128)
    made.engine.submit_for(A, spec("a", 16, max_tokens=100), H1)
    assert due(made) == [1]


@pytest.mark.parametrize("emitted", [(), (4, 5)])
def test_an_output_that_ends_with_its_first_token_asks_nobody(emitted: tuple[int, ...]) -> None:
    made = rig(role=Role.PREFILL)
    made.engine.submit_for(A, spec("a", 20, max_tokens=len(emitted) + 1, emitted=emitted), H1)
    assert due(made) == []
    for _ in range(4):
        made.step()
    assert made.engine.idle


def hand_over(made: Rig, length: int = 5) -> None:
    """Computes H1 up to its first token, pinned from its first chunk on."""
    made.engine.submit_for(A, spec("a", length), H1)
    due(made)
    made.engine.grant(H1, 1)
    made.step()
    made.engine.pin(H1, 1)


def test_a_computed_prompt_keeps_its_state_until_nobody_reads_it() -> None:
    made = rig(role=Role.PREFILL)
    hand_over(made)
    (request,) = made.engine.live_requests()
    assert request.phase is Phase.HANDING_OVER
    made.step()
    assert all(pool.held > 0 for pool in made.engine.status().pools)
    made.engine.unpin(H1)
    made.engine.check()
    assert all(pool.held == 0 for pool in made.engine.status().pools)
    assert made.engine.idle
    assert made.engine.take_ended() == []


@pytest.mark.parametrize("length", [5, 20])
def test_a_cancelled_prompt_keeps_its_state_until_nobody_reads_it(length: int) -> None:
    made = rig(role=Role.PREFILL)
    hand_over(made, length)
    made.engine.cancel(H1, 1)
    (ended,) = made.engine.take_ended()
    assert ended.reason is FinishReason.CANCELLED
    made.step()
    assert all(pool.held > 0 for pool in made.engine.status().pools)
    assert not made.engine.idle
    made.engine.unpin(H1)
    assert made.engine.idle
    assert all(pool.held == 0 for pool in made.engine.status().pools)


def test_a_prompt_cancelled_in_a_step_and_no_longer_read_goes_with_that_step() -> None:
    made = rig(role=Role.PREFILL)
    hand_over(made, 20)
    record = made.engine.launch()
    assert record is not None
    made.engine.cancel(H1, 1)
    made.engine.unpin(H1)
    assert all(pool.held > 0 for pool in made.engine.status().pools)
    made.engine.commit(record)
    made.engine.check()
    assert all(pool.held == 0 for pool in made.engine.status().pools)


def test_a_first_token_that_stops_the_output_ends_the_prompt() -> None:
    made = rig(role=Role.PREFILL)
    made.runner.script["a", 0] = EOS
    made.engine.submit_for(A, spec("a", 5), H1)
    due(made)
    made.engine.grant(H1, 1)
    record = made.engine.launch()
    assert record is not None
    (ended,) = made.engine.commit(record).ended
    assert ended.reason is FinishReason.STOP
    assert made.engine.idle


def test_a_grant_for_a_prompt_that_left_changes_nothing() -> None:
    made = rig(role=Role.PREFILL)
    made.engine.submit_for(A, spec("a"), H1)
    due(made)
    made.engine.cancel(H1, 1)
    assert not made.engine.grant(H1, 1)
    made.engine.submit_for(A, spec("a", attempt=2), H2)
    assert due(made) == [2]
