"""Requests whose prompts another worker computes: in line for room, promised it, and running once their state came."""

import pytest

from segue.batch.admission import headroom
from segue.batch.request import FinishReason, Request
from segue.batch.role import Role
from segue.errors import ContextTooLong, QueueFull, TransferFailed
from segue.handoff import Part, UnitRow
from segue.ids import Handle
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken
from tests.support.policies import EOS, Rig, rig, spec

H1, H2, H3 = Handle(1), Handle(2), Handle(3)
FIRST = EmittedToken(9, -0.5)


def reserve(made: Rig, request: Request) -> list[UnitRow]:
    """What a receiver sets aside for a request, as HELD units, with its state in them."""
    n, page, window = request.known_len, made.runner.page_tokens, made.runner.window
    stop = page_count(n + headroom(request), page)
    rows = []
    for name, pool in made.pools.items():
        first = first_window_page(n, window or 0, page) if name is ComponentName.WINDOW else 0
        count = 1 if name is ComponentName.RECURRENT else stop - first
        rows.append(UnitRow(Part.STATE, name, first, tuple(pool.alloc(count))))
    made.contents.arrive(request, rows, n)
    return rows


def arrive(made: Rig, handle: Handle, token: EmittedToken = FIRST) -> list[int]:
    """Promises, reserves and delivers one request's state. Returns its tokens until the end."""
    made.engine.ask(handle, 1)
    made.step()
    (request,) = made.engine.take_promised()
    news = made.engine.receive(handle, 1, reserve(made, request), token, cached_tokens=3)
    tokens = [one.token_id for one in news.tokens]
    while not made.engine.idle:
        record = made.engine.launch()
        assert record is not None
        step = made.engine.commit(record)
        made.engine.check()
        tokens += [one.token_id for one in step.tokens]
        for ended in step.ended:
            assert ended.usage.cached_tokens == 3
    return tokens


@pytest.mark.parametrize("page", [1, 4])
@pytest.mark.parametrize("length", [1, 4, 5, 6, 7, 30])
def test_a_request_continues_at_its_first_token_without_computing_its_prompt(page: int, length: int) -> None:
    made = rig(role=Role.DECODE, page_tokens=page, pages=200, window_pages=100)
    made.engine.expect(spec("a", length, max_tokens=30), H1)
    assert arrive(made, H1) == [9] + [7] * 29
    assert all(row.decode for plan in made.runner.plans for row in plan.rows)
    assert made.engine.status().prefill_tokens == 0
    assert all(pool.held == 0 for pool in made.engine.status().pools)
    assert made.slots.depths == {}


def test_a_request_that_nobody_asked_for_waits_and_owns_nothing() -> None:
    made = rig(role=Role.DECODE)
    made.engine.expect(spec("a"), H1)
    made.step()
    assert made.engine.take_promised() == []
    status = made.engine.status()
    assert (status.waiting, status.unpromised, status.promised, status.running) == (1, 1, 0, 0)
    assert all(pool.held == 0 for pool in status.pools)


def test_a_promise_commits_all_that_the_request_can_come_to_need() -> None:
    made = rig(role=Role.DECODE, pages=10, max_len=40, components=frozenset({ComponentName.FULL}))
    made.engine.expect(spec("a", 20, max_tokens=10), H1)
    made.engine.expect(spec("b", 20, max_tokens=10), H2)
    for handle in (H1, H2):
        made.engine.ask(handle, 1)
    made.step()
    assert [request.request_id for request in made.engine.take_promised()] == ["a"]
    made.engine.submit(spec("local", 4, max_tokens=2), H3)
    made.step()
    assert made.engine.status().running == 0, "a later request is not let past one that waits"
    made.engine.cancel(H1, 1)
    made.step()
    assert [request.request_id for request in made.engine.take_promised()] == ["b"]
    assert made.engine.status().running == 1, "what is left after b's promise is enough for the local one"


def test_promises_are_given_in_the_order_of_the_asks_of_equals() -> None:
    made = rig(role=Role.DECODE, max_running=1)
    for handle in (H1, H2):
        made.engine.expect(spec(f"q{handle}"), handle)
    made.engine.ask(H2, 1)
    made.engine.ask(H2, 1)
    made.engine.ask(H1, 1)
    made.step()
    assert [request.handle for request in made.engine.take_promised()] == [H2]
    made.engine.cancel(H2, 1)
    made.step()
    assert [request.handle for request in made.engine.take_promised()] == [H1]


def test_a_request_that_ends_is_not_told_of_its_promise() -> None:
    made = rig(role=Role.DECODE)
    made.engine.expect(spec("a"), H1)
    made.engine.ask(H1, 1)
    made.step()
    made.engine.cancel(H1, 1)
    assert made.engine.take_promised() == []


def test_pages_set_aside_ahead_stay_committed_until_they_are_used() -> None:
    window = frozenset({ComponentName.WINDOW})
    made = rig(role=Role.DECODE, components=window, page_tokens=1, window=6, window_pages=40, max_len=128)
    made.engine.expect(spec("a", 10, max_tokens=60), H1)
    made.engine.ask(H1, 1)
    made.step()
    (request,) = made.engine.take_promised()
    made.engine.receive(H1, 1, reserve(made, request), FIRST, cached_tokens=0)
    # 26 pages are held, though 7 would do for a running request.
    assert made.pools[ComponentName.WINDOW].counts().held == 26
    made.engine.expect(spec("b", 10, max_tokens=60), H2)
    made.engine.ask(H2, 1)
    made.step()
    assert made.engine.take_promised() == [], "26 more are not there"
    for _ in range(14):
        made.step()
    assert [other.handle for other in made.engine.take_promised()] == [H2]


def test_quarantined_units_are_promised_to_nobody() -> None:
    made = rig(role=Role.DECODE, slots=1, components=frozenset({ComponentName.FULL, ComponentName.RECURRENT}))
    slot = made.pools[ComponentName.RECURRENT].alloc(1, Owner.QUARANTINED)
    made.engine.expect(spec("a"), H1)
    made.engine.ask(H1, 1)
    made.engine.launch()
    assert made.engine.take_promised() == []
    made.pools[ComponentName.RECURRENT].free(slot, Owner.QUARANTINED)
    made.engine.launch()
    assert [request.handle for request in made.engine.take_promised()] == [H1]


def test_a_last_first_token_needs_no_state() -> None:
    made = rig(role=Role.DECODE)
    made.engine.expect(spec("a", max_tokens=5), H1)
    news = made.engine.receive_last(H1, 1, EmittedToken(EOS, 0.0), cached_tokens=2)
    assert news is not None
    (ended,) = news.ended
    assert (ended.reason, ended.usage.completion_tokens, ended.usage.cached_tokens) == (FinishReason.STOP, 1, 2)
    assert made.engine.idle


def test_a_first_token_that_is_not_the_last_is_not_taken_for_it() -> None:
    made = rig(role=Role.DECODE)
    made.engine.expect(spec("a", max_tokens=5), H1)
    assert made.engine.receive_last(H1, 1, FIRST, cached_tokens=0) is None
    (request,) = made.engine.live_requests()
    assert request.output == []


def test_a_failed_request_ends_with_its_error() -> None:
    made = rig(role=Role.DECODE)
    made.engine.expect(spec("a"), H1)
    made.engine.fail(H1, 2, TransferFailed("of another attempt"))
    error = TransferFailed("the sender broke")
    made.engine.fail(H1, 1, error)
    (ended,) = made.engine.take_ended()
    assert ended.error is error
    assert made.engine.idle


def test_the_queue_and_the_pools_bound_what_is_expected() -> None:
    made = rig(role=Role.DECODE, max_waiting=1, pages=4)
    with pytest.raises(ContextTooLong, match="full pool"):
        made.engine.expect(spec("long", 30), H1)
    made.engine.expect(spec("a"), H1)
    with pytest.raises(QueueFull):
        made.engine.expect(spec("b"), H2)
    with pytest.raises(QueueFull):
        made.engine.submit(spec("c"), H3)
