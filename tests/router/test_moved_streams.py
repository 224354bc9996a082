"""A worker that drains lets its choices go: the client sees one output, from the state if that arrives anywhere."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from router.config import RouterConfig
from segue.batch.request import FinishReason
from segue.batch.submission import Moved
from segue.errors import InvalidRequest, PeerLost, PoolExhausted, QueueFull, ServingError, WorkerUnavailable
from tests.router.reading import Reading, reading
from tests.router.served import ANSWER, QUICK, Served, answer, served, tokenizer, turn
from tests.support.fake_worker import FakeChoice, FakeWorker

TOKENS = tokenizer().encode(ANSWER)


@asynccontextmanager
async def decoding(
    *roles: str, config: RouterConfig = QUICK
) -> AsyncIterator[tuple[Served, list[FakeWorker], FakeWorker]]:
    """A router, workers that say nothing by themselves, and the prefill worker that those of role decode need."""
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(FakeWorker(answer, worker_id=f"d{i}", paused=True, role=role))
            for i, role in enumerate(roles)
        ]
        prefill = await stack.enter_async_context(FakeWorker(answer, worker_id="p", role="prefill"))
        router = await stack.enter_async_context(served(*workers, prefills=[prefill], config=config))
        await router.until_ready(len(workers))
        while not any(worker.ready for worker in router.shell.fleet.prefills.workers):
            await router.shell.fleet.wait_change(1.0)
        yield router, workers, prefill


async def begun(workers: list[FakeWorker], stream: Reading, tokens: int = 3) -> tuple[FakeWorker, FakeChoice]:
    """The worker that has the one choice, when the client has its first tokens."""
    while not any(worker.live for worker in workers):
        await turn()
    home = next(worker for worker in workers if worker.live)
    home.step(tokens)
    await stream.until_text(len(tokenizer().decode(TOKENS[:tokens])))
    return home, next(iter(home.live.values()))


async def taken(workers: list[FakeWorker], home: FakeWorker) -> FakeWorker:
    """Another worker, that has taken the choice."""
    others = [worker for worker in workers if worker is not home]
    while not any(worker.live for worker in others):
        await turn()
    return next(worker for worker in others if worker.live)


async def complete(worker: FakeWorker, stream: Reading) -> None:
    worker.step(64)
    await stream.until_over()
    assert stream.error is None
    assert stream.text == ANSWER
    assert stream.done


async def counted(router: Served) -> tuple[float, float]:
    """Choices that were switched, and continued without their state."""
    page = (await router.http.get("/metrics")).text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    return float(values["segue:switched_streams_total"]), float(values["segue:continuations_total"])


async def test_a_choice_that_has_left_its_worker_goes_on_from_its_state_at_another() -> None:
    async with decoding("decode", "decode") as (router, workers, _), reading(router.http) as stream:
        home, choice = await begun(workers, stream)
        home.end(choice.handle, FinishReason.MOVED)
        other = await taken(workers, home)
        (spec,) = other.specs
        assert spec.moved == Moved(home.address, choice.handle, choice.spec.attempt)
        assert (spec.emitted, spec.prefill_address) == (tuple(TOKENS[:3]), "")
        assert spec.attempt > choice.spec.attempt
        await complete(other, stream)
        assert await counted(router) == (1, 0)


@pytest.mark.parametrize("error", [PeerLost("it is gone"), PoolExhausted("full", 3, 1)])
async def test_a_state_that_is_lost_on_its_way_is_computed_again(error: ServingError) -> None:
    async with decoding("decode", "decode") as (router, workers, prefill), reading(router.http) as stream:
        home, choice = await begun(workers, stream)
        home.end(choice.handle, FinishReason.MOVED)
        other = await taken(workers, home)
        other.end(next(iter(other.live)), FinishReason.ERROR, error)
        await other.until(lambda: len(other.specs) == 2 and bool(other.live))
        assert (other.specs[1].moved, other.specs[1].prefill_address) == (None, prefill.address)
        assert other.specs[1].emitted == tuple(TOKENS[:3])
        await complete(other, stream)
        assert await counted(router) == (0, 1)


async def test_an_error_that_is_not_the_moves_ends_the_output() -> None:
    async with decoding("decode", "decode") as (router, workers, _), reading(router.http) as stream:
        home, choice = await begun(workers, stream)
        home.end(choice.handle, FinishReason.MOVED)
        other = await taken(workers, home)
        other.end(next(iter(other.live)), FinishReason.ERROR, InvalidRequest("no"))
        await stream.until_over()
        assert stream.error is not None
        assert stream.error["code"] == "invalid_request"


@pytest.mark.parametrize("error", [QueueFull("later"), WorkerUnavailable("it drains, too")])
async def test_a_worker_that_does_not_take_the_choice_leaves_the_state_to_another(error: ServingError) -> None:
    async with decoding("decode", "decode", "decode") as (router, workers, _), reading(router.http) as stream:
        home, choice = await begun(workers, stream)
        others = [worker for worker in workers if worker is not home]
        for worker in others:
            worker.refusals.append(error)
        home.end(choice.handle, FinishReason.MOVED)
        # The first one has refused, and the second; only then comes a worker that takes it.
        while sum(len(worker.specs) for worker in others) < 2:
            await turn()
        assert {worker.specs[0].moved for worker in others} == {Moved(home.address, choice.handle, choice.spec.attempt)}


async def test_a_worker_that_dies_with_the_state_is_followed_by_one_that_computes_it() -> None:
    async with decoding("decode", "decode", "decode") as (router, workers, prefill), reading(router.http) as stream:
        home, choice = await begun(workers, stream)
        home.end(choice.handle, FinishReason.MOVED)
        second = await taken(workers, home)
        await second.stop()
        third = await taken([worker for worker in workers if worker is not second], home)
        assert (third.specs[0].moved, third.specs[0].prefill_address) == (None, prefill.address)
        await complete(third, stream)


@asynccontextmanager
async def left_for_one_without_prefill() -> AsyncIterator[tuple[FakeWorker, FakeChoice, FakeWorker, Reading]]:
    """A choice that has left its decode worker, and the worker that has it now, which computes its prompts itself."""
    async with decoding("decode", "both") as (router, workers, _):
        # The choice begins at the decode worker.
        workers[1].refusals.append(WorkerUnavailable("not yet"))
        async with reading(router.http) as stream:
            home, choice = await begun(workers, stream)
            assert home is workers[0]
            home.end(choice.handle, FinishReason.MOVED)
            yield home, choice, await taken(workers, home), stream


async def test_a_worker_that_computes_its_prompts_itself_computes_this_one() -> None:
    async with left_for_one_without_prefill() as (_, _, other, stream):
        assert (other.specs[-1].moved, other.specs[-1].prefill_address) == (None, "")
        await complete(other, stream)


async def test_a_worker_that_moves_twice_loses_no_attempt() -> None:
    config = replace(QUICK, attempts_max=1)
    async with (
        decoding("decode", "decode", "decode", config=config) as (router, workers, _),
        reading(router.http) as stream,
    ):
        first, choice = await begun(workers, stream)
        first.end(choice.handle, FinishReason.MOVED)
        second = await taken(workers, first)
        (again,) = second.live.values()
        second.step(2)
        await stream.until_text(len(tokenizer().decode(TOKENS[:5])))
        second.end(again.handle, FinishReason.MOVED)
        third = await taken([worker for worker in workers if worker is not second], first)
        assert third.specs[0].moved == Moved(second.address, again.handle, again.spec.attempt)
        await complete(third, stream)
        assert await counted(router) == (2, 0)


async def test_a_worker_that_drains_is_told_whether_its_choices_could_go_on_elsewhere() -> None:
    async with decoding("decode", "decode", "both") as (router, workers, _):
        first, second, _ = workers
        assert not first.elsewhere
        first.draining = True
        await first.until(lambda: first.elsewhere)
        (link,) = [link for link in router.shell.fleet.links if link.address == first.address]
        # Nobody new is sent there, and that is no fault.
        assert link.breaker.allows(0.0)
        assert link not in router.shell.fleet.ready
        # Of two that drain, neither can take over from the other.
        second.draining = True
        await first.until(lambda: not first.elsewhere)
        assert not second.elsewhere
        assert len(router.shell.fleet.ready) == 1


async def test_a_client_that_leaves_before_its_state_is_fetched_has_it_given_up() -> None:
    async with decoding("decode") as (router, workers, _):
        async with reading(router.http) as stream:
            home, choice = await begun(workers, stream)
            home.end(choice.handle, FinishReason.MOVED)
            while not any(link.draining for link in router.shell.fleet.links):
                await turn()
            assert home.cancels == []
        await home.until(lambda: bool(home.cancels))
        assert [(one.handle, one.attempt) for one in home.cancels] == [(choice.handle, choice.spec.attempt)]


async def test_a_state_is_given_up_when_the_choice_goes_on_without_it() -> None:
    async with left_for_one_without_prefill() as (home, choice, other, stream):
        await complete(other, stream)
        await home.until(lambda: bool(home.cancels))
        assert [one.handle for one in home.cancels] == [choice.handle]


async def test_a_state_that_was_fetched_is_not_given_up() -> None:
    async with decoding("decode", "decode") as (router, workers, _), reading(router.http) as stream:
        home, choice = await begun(workers, stream)
        home.end(choice.handle, FinishReason.MOVED)
        await complete(await taken(workers, home), stream)
        assert home.cancels == []
