"""The engine over a scripted runner: life cycle, order, ends, and what a step in flight holds."""

import pytest

from segue.batch.request import FinishReason
from segue.errors import ContextTooLong, DeadlineExceeded, InvalidRequest, QueueFull
from segue.ids import Handle
from segue.state.spec import ComponentName
from tests.support.policies import EOS, Rig, rig, spec

H1, H2, H3 = Handle(1), Handle(2), Handle(3)


def run_out(made: Rig, limit: int = 500) -> dict[int, list[int]]:
    """Steps until idle; output tokens by handle, each index seen once and in order."""
    seen: dict[int, list[int]] = {}
    for _ in range(limit):
        record = made.engine.launch()
        if record is None:
            break
        news = made.engine.commit(record)
        made.engine.check()
        for handle, index, token in zip(news.handles, news.indices, news.tokens, strict=True):
            assert len(seen.setdefault(handle, [])) == index
            seen[handle].append(token.token_id)
    assert made.engine.idle
    return seen


def test_a_request_runs_to_its_budget_and_owns_nothing_afterwards() -> None:
    made = rig()
    made.engine.submit(spec("a", 21, max_tokens=5), H1)
    assert run_out(made) == {1: [7] * 5}
    status = made.engine.status()
    assert all(pool.held == 0 for pool in status.pools)
    assert (status.prefill_tokens, status.generated_tokens) == (21, 5)
    assert made.slots.depths == {}


def test_the_last_token_s_state_is_never_computed() -> None:
    made = rig()
    made.engine.submit(spec("a", 4, max_tokens=1), H1)
    run_out(made)
    assert [row.depth for plan in made.runner.plans for row in plan.rows] == [4]


def test_eos_ends_an_output_and_is_part_of_it() -> None:
    made = rig()
    made.runner.script["a", 2] = EOS
    made.engine.submit(spec("a", max_tokens=9), H1)
    assert run_out(made) == {1: [7, 7, EOS]}


def test_ignore_eos_and_min_tokens_let_the_output_go_on() -> None:
    made = rig()
    made.runner.script.update({("a", 1): EOS, ("b", 0): EOS, ("b", 2): EOS})
    made.engine.submit(spec("a", max_tokens=4, ignore_eos=True), H1)
    made.engine.submit(spec("b", max_tokens=9, min_tokens=2), H2)
    assert run_out(made) == {1: [7, EOS, 7, 7], 2: [EOS, 7, EOS]}


def test_a_stop_token_ends_an_output_even_when_eos_is_ignored() -> None:
    made = rig()
    made.runner.script["a", 1] = 42
    made.engine.submit(spec("a", max_tokens=9, ignore_eos=True, stop_token_ids=(42,)), H1)
    assert run_out(made) == {1: [7, 42]}


def test_a_continuation_computes_its_emitted_tokens_and_starts_at_their_end() -> None:
    made = rig()
    made.engine.submit(spec("a", 6, max_tokens=5, emitted=(8, 9, 10)), H1)
    record = made.engine.launch()
    assert record is not None
    while not record.plan.rows[-1].samples:
        made.engine.commit(record)
        record = made.engine.launch()
        assert record is not None
    assert record.depths.tolist() == [9]
    news = made.engine.commit(record)
    assert news.indices == [3]
    (request,) = made.engine.live_requests()
    assert [token.token_id for token in request.output] == [8, 9, 10, 7]


def test_long_prompts_are_computed_in_chunks_within_the_step_budget() -> None:
    made = rig(step_tokens=10, chunk_tokens=8)
    for number in range(3):
        made.engine.submit(spec(f"q{number}", 30), Handle(number))
    run_out(made)
    for plan in made.runner.plans:
        assert plan.token_count <= 10
        assert all(row.count <= 8 for row in plan.rows)


def test_decoding_goes_on_while_a_long_prompt_is_computed() -> None:
    made = rig(step_tokens=8, chunk_tokens=8, max_len=200, pages=200)
    made.engine.submit(spec("short", 4, max_tokens=20), H1)
    made.step()
    made.engine.submit(spec("long", 100, max_tokens=1), H2)
    made.step()
    rows = made.runner.plans[-1].rows
    assert [(row.request.request_id, row.count) for row in rows] == [("short", 1), ("long", 7)]


def test_higher_priority_goes_first_and_equals_go_in_order() -> None:
    made = rig(max_running=1)
    for number, priority in enumerate((0, 0, 5)):
        made.clock.now += 1
        made.engine.submit(spec(f"q{number}", priority=priority), Handle(number))
    run_out(made)
    order = list(dict.fromkeys(row.request.request_id for plan in made.runner.plans for row in plan.rows))
    assert order == ["q2", "q0", "q1"]


def test_a_request_waits_until_all_it_can_come_to_need_fits() -> None:
    made = rig(pages=10, max_len=64)
    made.engine.submit(spec("a", 20, max_tokens=10), H1)
    made.engine.submit(spec("b", 8, max_tokens=8), H2)
    made.step()
    assert made.engine.status().waiting == 1
    run_out(made)


def test_a_request_larger_than_the_pool_or_the_model_is_refused_with_figures() -> None:
    made = rig(pages=4)
    with pytest.raises(ContextTooLong, match="needs 8 units of the full pool, which has 4"):
        made.engine.submit(spec("a", 28), H1)
    with pytest.raises(ContextTooLong, match="at most 128"):
        made.engine.submit(spec("a", 126), H1)
    assert made.engine.idle


def test_a_full_queue_refuses_and_keeps_nothing() -> None:
    made = rig(max_waiting=2)
    made.engine.submit(spec("a"), H1)
    made.engine.submit(spec("b"), H2)
    with pytest.raises(QueueFull, match="queue holds 2"):
        made.engine.submit(spec("c"), H3)
    assert sorted(run_out(made)) == [1, 2]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (spec("a", ()), "empty prompt"),
        (spec("a", (3, 100)), "outside the vocabulary"),
        (spec("a", (3, -1)), "outside the vocabulary"),
        (spec("a", max_tokens=2, emitted=(4, 5)), "emitted already"),
        (spec("a", deadline_s=float("nan")), "deadline_s is nan"),
        (spec("a", deadline_s=1e300), "deadline_s is 1e"),
    ],
)
def test_what_can_never_run_is_refused_by_name(asked: object, words: str) -> None:
    made = rig()
    with pytest.raises(InvalidRequest, match=words):
        made.engine.submit(asked, H1)  # type: ignore[arg-type]
    assert made.engine.idle


def test_cancel_and_finish_release_everything_at_once() -> None:
    made = rig()
    made.engine.submit(spec("a", 9, max_tokens=50), H1)
    made.engine.submit(spec("b", 9, max_tokens=50), H2)
    for _ in range(6):
        made.step()
    made.engine.cancel(H1, 1)
    made.engine.finish(H2, 1, 1)
    made.engine.check()
    ended = {e.handle: (e.reason, e.usage.completion_tokens) for e in made.engine.take_ended()}
    assert ended[H1][0] is FinishReason.CANCELLED
    assert ended[H2] == (FinishReason.STOP, 1)
    assert made.engine.launch() is None
    assert all(pool.held == 0 for pool in made.engine.status().pools)


def test_what_a_step_in_flight_touches_is_released_only_when_it_is_committed() -> None:
    made = rig()
    made.engine.submit(spec("a", 9, max_tokens=50), H1)
    made.step()
    record = made.engine.launch()
    assert record is not None
    made.engine.cancel(H1, 1)
    assert all(pool.held > 0 for pool in made.engine.status().pools)
    news = made.engine.commit(record)
    assert news.tokens == []
    assert all(pool.held == 0 for pool in made.engine.status().pools)
    made.engine.check()


def test_messages_of_another_attempt_or_an_unknown_handle_change_nothing() -> None:
    made = rig()
    made.engine.submit(spec("a", attempt=2), H1)
    made.engine.cancel(H1, 1)
    made.engine.finish(H1, 3, 0)
    made.engine.cancel(H2, 2)
    assert run_out(made) == {1: [7] * 4}
    assert made.engine.take_ended() == []


def test_a_deadline_ends_a_request_waiting_or_running() -> None:
    made = rig(max_running=1)
    made.engine.submit(spec("a", max_tokens=50, deadline_s=10), H1)
    made.engine.submit(spec("b", deadline_s=5), H2)
    made.step()
    assert made.engine.next_deadline() == 5
    made.clock.now = 11
    made.engine.expire()
    assert made.engine.launch() is None
    ended = made.engine.take_ended()
    assert {e.handle for e in ended} == {H1, H2}
    assert all(isinstance(e.error, DeadlineExceeded) for e in ended)
    assert made.engine.idle


@pytest.mark.parametrize("components", [{"full"}, {"full", "window"}, {"full", "recurrent"}, {"recurrent"}])
def test_a_model_without_a_component_owns_none_of_it(components: set[str]) -> None:
    made = rig(components=frozenset(map(ComponentName, components)))
    made.engine.submit(spec("a", 21, max_tokens=9), H1)
    assert run_out(made) == {1: [7] * 9}
    assert {pool.name for pool in made.engine.status().pools} == components
