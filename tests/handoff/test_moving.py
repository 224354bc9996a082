"""Running requests that move from a decode worker that drains to another: outputs are those of an undisturbed run."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.retraction.config import RetractionConfig
from segue.batch.lifecycle import Phase
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.batch.submission import Moved
from segue.errors import InvalidRequest, TransferFailed
from segue.ids import Handle
from segue.wire import Cancel, GenerateSpec, Heartbeat
from tests.decode_service.router_end import spec
from tests.handoff.movers import Movers, moving
from tests.handoff.pair import alone
from tests.handoff.test_replay import assert_same, plainly
from tests.support.checkpoints import VOCAB

pytestmark = pytest.mark.long


def asking(number: int, length: int, output: int = 90) -> GenerateSpec:
    """Every second one is sampled, with penalties and alternatives: counts and positions must move too."""
    sampling = SamplingParams(seed=number, temperature=0.0, max_tokens=output, logprobs=0, ignore_eos=True)
    if number % 2:
        sampling = replace(sampling, temperature=0.8, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.3)
    prompt = tuple(2 + (31 * number + 7 * i + i * i) % (VOCAB - 2) for i in range(length))
    return replace(spec(f"q{number}"), prompt=prompt, sampling=sampling)


@asynccontextmanager
async def kept_up(movers: Movers) -> AsyncIterator[None]:
    """The source answers questions until the end of the block: a router that knows no other worker has a request."""
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=2000, ignore_eos=True)
    long = replace(spec("long", router_id="other"), sampling=sampling)
    async with movers.source.router.attach("other") as stream:
        handle = await movers.begin(long)
        await stream.until(lambda a: handle in a.tokens)
        yield


async def left(movers: Movers, asked: GenerateSpec) -> tuple[Handle, "asyncio.Task[None]"]:
    """A request runs at the source, which then drains: it has left."""
    handle = await movers.begin(asked)
    await movers.source.told(handle, 2)
    draining = await movers.drain()
    assert (await movers.source.end(handle)).reason is FinishReason.MOVED
    return handle, draining


def let_go(movers: Movers) -> None:
    """That the source, which has ended, holds nothing."""
    movers.source.engine.check()
    assert movers.source.engine.idle
    assert not any(pool.held + pool.reserved for pool in movers.source.engine.status().pools)


@pytest.mark.parametrize("transport", ["local", "nixl", "grpc"])
async def test_a_moved_output_is_that_of_one_worker(hybrid: Path, transport: str) -> None:
    asked = [asking(number, length) for number, length in enumerate((1, 2, 31, 32, 33, 70))]
    async with moving(hybrid, transports=transport, max_len=256) as movers:
        found = await movers.switched(asked)
        target = await movers.target.status()
        assert target.transfers.moved_in == len(asked)
        assert target.prefill_tokens == 0
        await movers.target.emptied()
        let_go(movers)
    assert found == await alone(hybrid, asked, max_len=256)


@pytest.mark.parametrize("family", ["sliding", "dense"])
async def test_models_without_some_component_move_what_they_have(family: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(family)
    asked = [asking(number, length) for number, length in enumerate((1, 40))]
    async with moving(folder, max_len=256) as movers:
        assert await movers.switched(asked) == await alone(folder, asked, max_len=256)


@pytest.mark.parametrize("page", [1, 3, 64])
async def test_odd_pages_and_windows_below_a_page_change_nothing(hybrid: Path, page: int) -> None:
    asked = [asking(number, length) for number, length in enumerate((1, 22, 23, 24, 65))]
    async with moving(hybrid, page_tokens=page, max_len=256) as movers:
        found = await movers.switched(asked, after=page % 5)
    assert found == await alone(hybrid, asked, page_tokens=page, max_len=256)


@pytest.mark.parametrize("after", [1, 5, 8, 9])
async def test_matrix_states_that_are_behind_their_records_move_whole(hybrid: Path, after: int) -> None:
    asked = [asking(number, 20) for number in range(3)]
    async with moving(hybrid, replay_length=8, deterministic=False, max_len=256) as movers:
        found = await movers.switched(asked, after=after)
    assert_same(found, await plainly(hybrid, asked))


@pytest.mark.parametrize("replay_length", [1, 8])
async def test_a_request_moves_on_from_where_it_moved_to(hybrid: Path, replay_length: int) -> None:
    asked = [asking(number, length) for number, length in enumerate((1, 30, 67))]
    exact = replay_length == 1
    async with moving(hybrid, decodes=3, replay_length=replay_length, deterministic=exact, max_len=256) as movers:
        here, handles, parts = list(asked), [await movers.begin(one) for one in asked], []
        for source in (0, 1):
            worker = movers.decodes[source]
            for handle in handles:
                await worker.told(handle, 5)
            draining = await movers.drain(source)
            parts.append([await worker.end(handle) for handle in handles])
            here = [
                movers.moved(one, handle, attempt=source + 2, source=source)
                for one, handle in zip(here, handles, strict=True)
            ]
            handles = [await movers.decodes[source + 1].router.generate(one) for one in here]
            await draining
        parts.append([await movers.decodes[2].end(handle) for handle in handles])
        assert (await movers.decodes[2].status()).prefill_tokens == 0
    found = [
        replace(
            whole[-1],
            tokens=[token for part in whole for token in part.tokens],
            logprobs=[logprob for part in whole for logprob in part.logprobs],
        )
        for whole in zip(*parts, strict=True)
    ]
    if exact:
        assert found == await alone(hybrid, asked, max_len=256)
    else:
        assert_same(found, await plainly(hybrid, asked))


async def test_a_second_turn_is_the_same_where_the_first_one_moved_to(hybrid: Path) -> None:
    first = asking(0, 40)
    async with moving(hybrid, max_len=256) as movers:
        (answer,) = await movers.switched([first])
        second = replace(asking(2, 1), prompt=(*first.prompt, *answer.tokens, 5, 6, 7))
        asked = replace(second, prefill_address=movers.prefill.address)
        found = await movers.target.end(await movers.target.router.generate(asked))
        await movers.target.emptied()
    assert found == (await alone(hybrid, [second], max_len=256))[0]


async def test_pools_of_another_size_take_a_moved_request(hybrid: Path) -> None:
    asked = [asking(0, 40)]
    async with moving(hybrid, target={"state_bytes": 4 << 20}, max_len=256) as movers:
        assert await movers.switched(asked) == await alone(hybrid, asked, max_len=256)


async def test_a_request_that_is_off_the_device_comes_back_before_it_leaves(hybrid: Path) -> None:
    asked = [asking(number, 20) for number in range(4)]
    forced = RetractionConfig(host_bytes=32 << 20, verify=True, test_interval=2)
    async with moving(hybrid, retraction=forced, max_len=256) as movers:
        handles = [await movers.begin(one) for one in asked]
        movers.source.gate.close()
        for _ in range(1000):
            await asyncio.to_thread(movers.source.gate.reached)
            if any(one.phase is Phase.RETRACTED for one in movers.source.engine.live_requests()):
                break
            movers.source.gate.allow(1)
        draining = await movers.drain()
        movers.source.gate.open()
        found = [await movers.switch(one, handle) for one, handle in zip(asked, handles, strict=True)]
        await draining
    assert found == await alone(hybrid, asked, max_len=256)


async def test_who_has_not_begun_is_sent_on_and_owns_nothing_here(hybrid: Path) -> None:
    running = asking(0, 20, 1000)
    async with moving(hybrid, source={"max_running": 1}, max_len=2048) as movers:
        first = await movers.begin(running)
        await movers.source.told(first, 2)
        second = await movers.begin(asking(1, 20))
        draining = await movers.drain()
        assert (await movers.source.end(second)).reason is FinishReason.CANCELLED
        assert (await movers.source.end(first)).reason is FinishReason.MOVED
        assert (await movers.switch(running, first)).reason is FinishReason.LENGTH
        await draining
        let_go(movers)


async def test_a_worker_whose_router_knows_no_other_finishes_what_it_has(hybrid: Path) -> None:
    async with moving(hybrid, max_len=256) as movers:
        handle = await movers.begin(asking(0, 20))
        await movers.source.told(handle, 2)
        draining = asyncio.create_task(movers.source.host.worker.drain(10))
        await movers.source.stream.send(Heartbeat(1))
        answer = await movers.source.end(handle)
        await draining
    assert [answer] == await alone(hybrid, [asking(0, 20)], max_len=256)


async def test_a_state_is_fetched_once(hybrid: Path) -> None:
    async with moving(hybrid, max_len=2048) as movers, kept_up(movers):
        handle, _ = await left(movers, asking(0, 20))
        # Two routers, or one that has lost its way: the same state for two requests.
        names = [movers.moved(asking(0, 20), handle, attempt=attempt) for attempt in (2, 3)]
        twice = [replace(one, sampling=replace(one.sampling, choice=one.attempt)) for one in names]
        handles = [await movers.target.router.generate(one) for one in twice]
        answers = [await movers.target.end(one) for one in handles]
        await movers.target.emptied()
        figures = (await movers.source.status()).transfers
        assert (figures.moved_out, figures.moved_lost) == (1, 0)
        assert (await movers.target.status()).transfers.moved_in == 1
    (refused,) = [one.error for one in answers if one.error is not None]
    assert isinstance(refused, TransferFailed)
    let_go(movers)


async def test_a_state_nobody_comes_for_is_given_up_at_the_limit(hybrid: Path) -> None:
    async with moving(hybrid, keep_s=0.2, max_len=2048) as movers, kept_up(movers):
        handle, _ = await left(movers, asking(0, 20))
        async with asyncio.timeout(10):
            while not (figures := (await movers.source.status()).transfers).moved_lost:
                pass
        assert (figures.moved_out, figures.moved_lost) == (0, 1)
        late = movers.moved(asking(0, 20), handle)
        answer = await movers.target.end(await movers.target.router.generate(late))
        assert isinstance(answer.error, TransferFailed)
        await movers.target.emptied()
    let_go(movers)


async def test_a_state_that_does_not_belong_to_the_tokens_is_not_used(hybrid: Path) -> None:
    async with moving(hybrid, max_len=256) as movers:
        handle, draining = await left(movers, asking(0, 20))
        right = movers.moved(asking(0, 20), handle)
        wrong = replace(right, emitted=(*right.emitted[:-1], right.emitted[-1] ^ 1))
        answer = await movers.target.end(await movers.target.router.generate(wrong))
        assert isinstance(answer.error, TransferFailed)
        await movers.target.emptied()
        again = await movers.target.end(await movers.target.router.generate(replace(right, attempt=3)))
        assert again.reason is FinishReason.LENGTH
        await draining
        let_go(movers)


async def test_a_client_that_leaves_as_its_request_does_frees_the_state(hybrid: Path) -> None:
    async with moving(hybrid, max_len=256) as movers:
        handle, draining = await left(movers, asking(0, 20))
        await movers.source.stream.send(Cancel(handle, 1))
        await draining
        let_go(movers)


async def test_a_drain_ends_with_its_budget_whatever_is_kept(hybrid: Path) -> None:
    async with moving(hybrid, max_len=256) as movers:
        handle = await movers.begin(asking(0, 20))
        await movers.source.told(handle, 2)
        draining = asyncio.create_task(movers.source.host.worker.drain(0.3))
        await movers.source.stream.send(Heartbeat(1, elsewhere=True))
        assert (await movers.source.end(handle)).reason is FinishReason.MOVED
        await draining


async def test_a_move_makes_sense_only_once_output_has_begun(hybrid: Path) -> None:
    async with moving(hybrid, max_len=256) as movers:
        moved = replace(asking(0, 20), moved=Moved(movers.source.host.address, Handle(1), 1))
        with pytest.raises(InvalidRequest, match="while its output"):
            await movers.target.router.generate(moved)
        for attempt, address in enumerate((movers.source.host.address, movers.prefill.address), 2):
            astray = replace(moved, attempt=attempt, emitted=(5,), moved=Moved(address, Handle(1), 1))
            answer = await movers.target.end(await movers.target.router.generate(astray))
            assert isinstance(answer.error, TransferFailed)
        await movers.target.emptied()
