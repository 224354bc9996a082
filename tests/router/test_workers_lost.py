"""Streams that break and workers that die: the client sees one output, each token once, or a plain error."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from router.link import LinkState
from segue.batch.request import FinishReason
from segue.errors import InvalidRequest, QueueFull, ServingError, WorkerUnavailable
from segue.ids import Handle
from segue.wire import Ended, Resume, StepNews, Usage
from tests.router.reading import Reading, reading
from tests.router.served import ANSWER, END, QUICK, Served, answer, served, tokenizer, turn
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeChoice, FakeWorker

TOKENS = tokenizer().encode(ANSWER)
ASK = {"prompt": "x", "max_tokens": 64}


def text(count: int) -> str:
    """The answer's first tokens."""
    return tokenizer().decode(TOKENS[:count])


async def begun(worker: FakeWorker, stream: Reading, tokens: int) -> FakeChoice:
    """The one live choice, when the client has its first tokens."""
    await worker.until(lambda: len(worker.live) == 1)
    worker.step(tokens)
    await stream.until_text(len(text(tokens)))
    return next(iter(worker.live.values()))


async def complete(stream: Reading) -> None:
    await stream.until_over()
    assert stream.text == ANSWER
    assert stream.reason == "stop"
    assert stream.done


async def test_after_a_broken_stream_it_goes_on_at_the_next_token() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        async with reading(router.http) as stream:
            choice = await begun(worker, stream, 3)
            worker.break_stream()
            worker.step(2)
            await worker.until(lambda: len(worker.attaches) == 2)
            assert worker.attaches[1].resume == (Resume(choice.handle, choice.spec.attempt, 3),)
            worker.step(64)
            await complete(stream)
        assert len(worker.specs) == 1
        await router.until_idle()


async def test_a_choice_that_the_worker_has_forgotten_is_continued_from_what_was_emitted() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        async with reading(router.http) as stream:
            await begun(worker, stream, 4)
            worker.live.clear()
            worker.break_stream()
            await worker.until(lambda: len(worker.live) == 1)
            first, second = worker.specs
            assert second == replace(
                first, attempt=second.attempt, emitted=tuple(TOKENS[:4]), deadline_s=second.deadline_s
            )
            assert second.attempt > first.attempt
            worker.step(64)
            await complete(stream)
        await router.until_idle()


@pytest.mark.parametrize("emitted", [0, 5])
async def test_when_a_worker_dies_another_continues(emitted: int) -> None:
    async with (
        FakeWorker(answer, worker_id="a", paused=True) as a,
        FakeWorker(answer, worker_id="b", paused=True) as b,
        served(a, b) as router,
        reading(router.http) as stream,
    ):
        home, other = await placed(a, b)
        if emitted:
            await begun(home, stream, emitted)
        await home.stop()
        await other.until(lambda: len(other.live) == 1)
        assert other.specs[0].emitted == tuple(TOKENS[:emitted])
        other.step(64)
        await complete(stream)


async def placed(*workers: FakeWorker) -> tuple[FakeWorker, FakeWorker]:
    """The worker that has the choice, and the other one."""
    a, b = workers
    while not a.live and not b.live:
        await turn()
    return (a, b) if a.live else (b, a)


async def asked(workers: Sequence[FakeWorker]) -> FakeWorker:
    """The first of them that was offered anything."""
    while (found := next((worker for worker in workers if worker.specs), None)) is None:
        await turn()
    return found


async def test_a_worker_restarted_under_its_address_continues_what_its_predecessor_began() -> None:
    async with FakeWorker(answer, worker_id="old", paused=True) as old:
        new = FakeWorker(answer, worker_id="new", paused=True)
        async with served(old) as router, reading(router.http) as stream:
            await begun(old, stream, 2)
            await old.stop()
            await new.start(old.port)
            try:
                await new.until(lambda: len(new.live) == 1)
                assert new.attaches[0].resume == ()
                assert new.specs[0].emitted == tuple(TOKENS[:2])
                new.step(64)
                await complete(stream)
            finally:
                await new.stop()


async def test_a_worker_that_falls_silent_is_given_up() -> None:
    async with (
        FakeWorker(answer, worker_id="a", paused=True) as a,
        FakeWorker(answer, worker_id="b", paused=True) as b,
        served(a, b) as router,
        reading(router.http) as stream,
    ):
        home, other = await placed(a, b)
        await begun(home, stream, 3)
        home.silent = home.deaf = True
        await other.until(lambda: len(other.live) == 1)
        other.step(64)
        await complete(stream)
        # What the lost worker still says reaches nobody.
        assert other.specs[0].emitted == tuple(TOKENS[:3])


@pytest.mark.long
async def test_one_that_freezes_while_it_accepts_is_given_up_as_soon_as_any_other() -> None:
    """It is given minutes to read a copy from its disk."""
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(FakeWorker(answer, worker_id=name, paused=True, folder=FakeFolder()))
            for name in "abc"
        ]
        router = await stack.enter_async_context(served(*workers))
        stream = await stack.enter_async_context(reading(router.http))
        home = await asked(workers)
        await begun(home, stream, 3)
        for worker in workers:
            worker.deciding.clear()
        await home.stop()
        frozen = await asked([worker for worker in workers if worker is not home])
        frozen.silent = frozen.deaf = True
        (other,) = (worker for worker in workers if worker not in (home, frozen))
        other.deciding.set()
        await other.until(lambda: bool(other.live))
        other.step(64)
        await complete(stream)
        # What it accepts after all is dropped.
        frozen.silent = frozen.deaf = False
        await frozen.until(lambda: len(frozen.attaches) == 2)
        frozen.deciding.set()
        await frozen.until(lambda: bool(frozen.cancels))
        assert not frozen.live
        await router.until_idle()


async def test_a_stream_that_nobody_can_continue_ends_with_an_error_event() -> None:
    config = replace(QUICK, continuation_grace_s=0.2)
    async with FakeWorker(answer, paused=True) as worker, served(worker, config=config) as router:
        async with reading(router.http) as stream:
            await begun(worker, stream, 2)
            await worker.stop()
            await stream.until_over()
            assert stream.error is not None
            assert stream.error["code"] == "worker_unavailable"
            assert stream.text == text(2)
            assert not stream.done
        await router.until_idle()


async def test_without_any_worker_a_request_is_a_503_to_be_tried_again() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        await worker.stop()
        await router.until_ready(0)
        got = await router.http.post("/v1/completions", json=ASK)
        assert got.status_code == 503
        assert got.headers["retry-after"] == "1"
        assert got.json()["error"]["code"] == "worker_unavailable"
    async with served("127.0.0.1:1", ready=0) as router:
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 503
        assert (await router.http.get("/health")).status_code == 503
        assert (await router.http.get("/readiness")).status_code == 503
        assert (await router.http.get("/liveness")).status_code == 200


@pytest.mark.parametrize("lost", ["length", "stop"])
async def test_when_only_the_word_of_the_end_was_lost_nothing_is_sent_again(lost: str) -> None:
    max_tokens = 5 if lost == "length" else 64
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        async with reading(router.http, max_tokens=max_tokens) as stream:
            choice = await begun(worker, stream, 4)
            rest = TOKENS[4:5] if lost == "length" else [*TOKENS[4:], END]
            count = len(rest)
            worker.live.clear()
            worker.say(StepNews(99, [choice.handle] * count, [choice.spec.attempt] * count, range(4, 4 + count), rest))
            worker.break_stream()
            await stream.until_over()
            assert stream.reason == lost
            assert stream.text == (text(5) if lost == "length" else ANSWER)
        assert len(worker.specs) == 1


async def test_duplicates_and_news_of_other_tries_change_nothing() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        choice = await begun(worker, stream, 3)
        handle, attempt = choice.handle, choice.spec.attempt
        worker.say(StepNews(90, [handle] * 3, [attempt] * 3, [0, 1, 2], TOKENS[:3]))
        worker.say(StepNews(91, [handle] * 2, [attempt + 1, attempt - 1 & 0xFF], [3, 3], [7, 7]))
        worker.say(StepNews(92, ended=[Ended(handle, attempt + 1, FinishReason.LENGTH)]))
        worker.step(64)
        await complete(stream)


async def test_a_gap_in_the_tokens_fails_the_request_and_tells_the_worker() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        choice = await begun(worker, stream, 3)
        worker.say(StepNews(90, [choice.handle], [choice.spec.attempt], [4], [TOKENS[4]]))
        await stream.until_over()
        assert stream.error is not None
        assert "index 4 when 3 was next" in stream.error["message"]
        assert stream.text == text(3)
        await worker.until(lambda: len(worker.cancels) == 1)
        assert not worker.live
        await router.until_idle()


@pytest.mark.parametrize("counted", [4, 9])
async def test_an_end_that_counts_more_tokens_than_came_is_a_gap(counted: int) -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        choice = await begun(worker, stream, 3)
        worker.live.clear()
        ended = Ended(choice.handle, choice.spec.attempt, FinishReason.STOP, Usage(1, counted, 0))
        worker.say(StepNews(90, ended=[ended]))
        await stream.until_over()
        assert stream.error is not None
        assert stream.error["code"] == "internal_error"
        await router.until_idle()


async def test_more_tokens_than_were_asked_for_fail_the_request() -> None:
    async with (
        FakeWorker(answer, paused=True) as worker,
        served(worker) as router,
        reading(router.http, max_tokens=4) as stream,
    ):
        choice = await begun(worker, stream, 3)
        worker.say(StepNews(90, [choice.handle] * 2, [choice.spec.attempt] * 2, [3, 4], [TOKENS[3], TOKENS[4]]))
        await stream.until_over()
        assert stream.error is not None
        assert "only 4 tokens" in stream.error["message"]


async def test_tokens_that_overtake_the_acceptance_are_not_lost() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        worker.paused = True
        worker.early_tokens = 3
        async with reading(router.http) as stream:
            await stream.until_text(len(text(3)))
            worker.step(64)
            await complete(stream)
        worker.early_tokens = 64
        async with reading(router.http) as stream:
            await complete(stream)
        await router.until_idle()


async def test_a_handle_that_nobody_waits_for_is_cancelled_once() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        for index in range(3):
            worker.say(StepNews(index, [777], [1], [index], [5]))
        await worker.until(lambda: len(worker.cancels) > 0)
        worker.say(StepNews(9, [777], [1], [3], [5]))
        async with reading(router.http) as stream:
            await begun(worker, stream, 1)
            worker.step(64)
            await complete(stream)
        assert [(cancel.handle, cancel.attempt) for cancel in worker.cancels] == [(Handle(777), 1)]


async def test_a_refusal_by_one_worker_is_tried_at_the_other() -> None:
    async with FakeWorker(answer, worker_id="a") as a, FakeWorker(answer, worker_id="b") as b, served(a, b) as router:
        for refusal in (WorkerUnavailable("draining"), QueueFull("full"), ServingError("a bug")):
            a.refusals, b.refusals = [refusal], []
            for _ in range(2):
                got = await router.http.post("/v1/completions", json=ASK)
                assert got.status_code == 200, got.text
        assert any(spec.attempt > 0 for spec in (*a.specs, *b.specs))


async def test_when_every_worker_is_full_the_client_is_told_so() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        worker.refusals = [QueueFull("full")]
        got = await router.http.post("/v1/completions", json=ASK)
        assert got.status_code == 429
        assert got.headers["retry-after"] == "1"
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 200


async def test_a_worker_that_ends_a_choice_on_its_own_is_asked_again() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        choice = await begun(worker, stream, 2)
        worker.end(choice.handle, FinishReason.CANCELLED)
        await worker.until(lambda: len(worker.live) == 1)
        choice = next(iter(worker.live.values()))
        assert choice.spec.emitted == tuple(TOKENS[:2])
        worker.end(choice.handle, FinishReason.ERROR, WorkerUnavailable("going down"))
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(64)
        await complete(stream)


async def test_an_acceptance_that_straddles_a_reattachment_is_void_and_taken_back() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        worker.deciding.clear()
        await worker.until(lambda: len(worker.specs) == 1)
        worker.break_stream()
        await worker.until(lambda: len(worker.attaches) == 2)
        assert worker.attaches[1].resume == ()
        worker.deciding.set()
        await worker.until(lambda: len(worker.specs) == 2 and len(worker.cancels) == 1)
        assert worker.cancels[0].attempt == worker.specs[0].attempt
        await begun(worker, stream, 2)
        worker.step(64)
        await complete(stream)


async def test_what_comes_up_while_an_attachment_is_under_way_is_said_after_it() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stays:
        await begun(worker, stays, 1)
        async with reading(router.http):
            await worker.until(lambda: len(worker.live) == 2)
            worker.deciding.clear()
            async with reading(router.http) as accepted_late:
                await worker.until(lambda: len(worker.specs) == 3)
                worker.attaching.clear()
                worker.break_stream()
                await worker.until(lambda: len(worker.attaches) == 2)
                assert len(worker.attaches[1].resume) == 2
                worker.deciding.set()
                await worker.until(lambda: len(worker.live) == 3)
                worker.attaching.set()
                await worker.until(lambda: len(worker.specs) == 4 and len(worker.cancels) == 1)
                assert worker.cancels[0].attempt == worker.specs[2].attempt
                await worker.until(lambda: len(worker.live) == 3)
                worker.attaching.clear()
                worker.break_stream()
                await worker.until(lambda: len(worker.attaches) == 3)
                assert len(worker.attaches[2].resume) == 3
        for _ in range(500):
            # The router notices that the clients have left.
            await asyncio.sleep(0)
        worker.attaching.set()
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(64)
        await complete(stays)
        assert accepted_late.text == ""


async def test_an_acceptance_during_a_broken_stream_is_named_at_the_reattachment() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        worker.deciding.clear()
        await worker.until(lambda: len(worker.specs) == 1)
        worker.deaf = True
        worker.break_stream()
        await until_state(router, LinkState.BROKEN)
        worker.deciding.set()
        await worker.until(lambda: len(worker.live) == 1)
        worker.deaf = False
        await worker.until(lambda: len(worker.attaches) == 2)
        assert len(worker.attaches[1].resume) == 1
        await begun(worker, stream, 2)
        worker.step(64)
        await complete(stream)
        assert len(worker.specs) == 1


async def until_state(router: Served, state: LinkState) -> None:
    fleet = router.shell.fleet
    while fleet.links[0].state is not state:
        await fleet.wait_change(1.0)


async def test_a_worker_that_keeps_failing_is_left_alone_until_a_probe_succeeds() -> None:
    config = replace(QUICK, breaker_faults=2, breaker_cooldown_s=30.0, placement_wait_s=0.05, continuation_grace_s=0.05)
    async with FakeWorker(answer) as worker, served(worker, config=config) as router:
        worker.refusals = [ServingError("a bug")] * 2
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 500
        assert (await router.http.post("/v1/completions", json=ASK)).status_code in (500, 503)
        assert (await router.http.get("/health")).status_code == 503
        (listed,) = (await router.http.get("/workers")).json()["workers"]
        assert listed["breaker"] == "open"
        tried = len(worker.specs)
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 503
        assert len(worker.specs) == tried


async def test_client_faults_never_take_a_worker_out() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        worker.refusals = [InvalidRequest("no")] * 20
        for _ in range(20):
            assert (await router.http.post("/v1/completions", json=ASK)).status_code == 400
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 200
