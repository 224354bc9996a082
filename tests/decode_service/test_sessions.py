"""A broken stream is not a dead worker: outputs survive it, are sent again exactly once, and end with the grace."""

import asyncio
import threading
from dataclasses import replace

import pytest

from decode_service.worker import Worker
from segue.batch.request import FinishReason
from segue.errors import Cancelled, DeadlineExceeded, InvalidRequest, WorkerUnavailable
from segue.ids import Handle
from segue.wire import Resume
from tests.decode_service.engines import ScriptedRunner, expected
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import Attachment, RouterEnd, spec
from tests.decode_service.served import QUICK, served

PROMPT = (5, 6, 7)


def entries(indices: range, attempt: int = 1) -> list[tuple[int, int, int]]:
    return [(attempt, index, expected(PROMPT, index)) for index in indices]


def paced(never: threading.Event) -> None:
    """What a step of a real model takes."""
    never.wait(0.01)


async def emptied(worker: Worker, router: RouterEnd) -> None:
    """Until no request is live and every pool is whole."""
    async with asyncio.timeout(10):
        while worker.live:
            await router.status()
    assert all(pool.free + pool.sink == pool.capacity for pool in (await router.status()).pools)


async def begun(router: RouterEnd, gate: Gate, stream: Attachment, *, tokens: int, max_tokens: int) -> Handle:
    """A request that has emitted exactly `tokens`, and waits at the gate for its next step."""
    gate.close()
    generating = asyncio.create_task(router.generate(spec(max_tokens=max_tokens)))
    handle = await generating
    gate.allow(tokens)
    await stream.until(lambda a: len(a.tokens.get(handle, ())) >= tokens)
    return handle


async def test_after_a_broken_stream_every_token_arrives_exactly_once() -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (worker, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await begun(router, gate, stream, tokens=4, max_tokens=30)
        gate.open()
        async with router.attach("r", Resume(handle, 1, 4)) as again:
            assert again.hello is not None
            assert again.hello.unknown == ()
            await again.until(lambda a: handle in a.ended)
        assert stream.tokens[handle] + again.tokens[handle] == entries(range(30))
        await emptied(worker, router)


async def test_tokens_that_the_router_did_not_see_are_sent_again() -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await begun(router, gate, stream, tokens=4, max_tokens=12)
        gate.open()
        async with router.attach("r", Resume(handle, 1, 1)) as again:
            await again.until(lambda a: handle in a.ended)
        assert again.tokens[handle] == entries(range(1, 12))


async def test_an_end_that_went_down_with_the_stream_is_told_again() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await router.generate(spec(max_tokens=3))
            await stream.until(lambda a: handle in a.ended)
        async with router.attach("r", Resume(handle, 1, 2)) as again:
            await again.until(lambda a: handle in a.ended)
            assert again.tokens[handle] == entries(range(2, 3))
            assert again.ended[handle] == stream.ended[handle]


async def test_live_requests_that_the_router_does_not_name_are_cancelled() -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (worker, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await begun(router, gate, stream, tokens=2, max_tokens=200)
        async with router.attach() as again:
            gate.open()
            await again.until(lambda a: handle in a.ended)
            assert again.ended[handle].reason is FinishReason.CANCELLED
            assert handle not in again.tokens
            await emptied(worker, router)


async def test_handles_that_the_worker_does_not_hold_are_named_unknown() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await router.generate(spec(max_tokens=3))
            await stream.until(lambda a: handle in a.ended)
        wanted = (Resume(Handle(99), 1, 0), Resume(handle, 2, 0))
        async with router.attach("r", *wanted) as again:
            assert again.hello is not None
            assert again.hello.unknown == (99, handle)


async def test_a_resume_beyond_the_output_is_refused_and_changes_nothing() -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await begun(router, gate, stream, tokens=2, max_tokens=6)
        with pytest.raises(InvalidRequest, match="cannot resume at 7"):
            async with router.attach("r", Resume(handle, 1, 7)):
                pass
        gate.open()
        async with router.attach("r", Resume(handle, 1, 2)) as again:
            await again.until(lambda a: handle in a.ended)
            assert again.tokens[handle] == entries(range(2, 6))


async def test_a_router_that_stays_away_loses_its_requests_after_the_grace() -> None:
    never = threading.Event()
    runner = ScriptedRunner(lambda: paced(never))
    config = replace(QUICK, session_grace_s=0.2)
    async with served(runner, config) as (worker, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            handle = await router.generate(spec(max_tokens=250))
            await stream.until(lambda a: handle in a.tokens)
        await emptied(worker, router)
        assert runner.steps < 250
        async with router.attach("r", Resume(handle, 1, 2)) as again:
            assert again.hello is not None
            assert again.hello.unknown == (handle,)


async def test_a_router_that_says_nothing_is_cut_off() -> None:
    config = replace(QUICK, silence_s=0.2)
    async with served(config=config) as (_, address), RouterEnd(address) as router:
        async with router.attach() as stream:
            with pytest.raises(DeadlineExceeded, match="said nothing"):
                await stream.until_end()
        with pytest.raises(WorkerUnavailable, match="no session"):
            await router.generate(spec())


async def test_heartbeats_flow_both_ways_while_nothing_happens() -> None:
    config = replace(QUICK, silence_s=0.3)
    async with served(config=config) as (_, address), RouterEnd(address) as router, router.attach() as stream:
        for count in range(1, 16):
            await stream.beat()
            await stream.until(lambda a, count=count: a.beats >= count)  # type: ignore[misc]


async def test_a_newer_stream_takes_over_from_one_that_hangs() -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (_, address), RouterEnd(address) as router, router.attach() as stream:
        handle = await begun(router, gate, stream, tokens=2, max_tokens=20)
        async with router.attach("r", Resume(handle, 1, 2)) as newer:
            gate.open()
            await newer.until(lambda a: handle in a.ended)
            with pytest.raises(Cancelled, match="took over"):
                await stream.until_end()
        assert stream.tokens[handle] + newer.tokens[handle] == entries(range(20))


async def test_two_routers_see_only_their_own() -> None:
    async with (
        served() as (_, address),
        RouterEnd(address) as one,
        RouterEnd(address) as two,
        one.attach("one") as first,
        two.attach("two") as second,
    ):
        mine = await one.generate(spec(router_id="one"))
        theirs = await two.generate(spec(router_id="two"))
        await first.until(lambda a: mine in a.ended)
        await second.until(lambda a: theirs in a.ended)
        assert set(first.tokens) == {mine}
        assert set(second.tokens) == {theirs}


async def test_a_router_that_does_not_read_slows_nobody_down() -> None:
    async with (
        served() as (worker, address),
        RouterEnd(address) as slow,
        RouterEnd(address) as quick,
        slow.attach("slow") as unread,
        quick.attach("quick") as stream,
    ):
        waiting = [
            await slow.generate(spec(f"s{i}", router_id="slow", max_tokens=200, prompt=PROMPT)) for i in range(40)
        ]
        handle = await quick.generate(spec(router_id="quick", max_tokens=200))
        await stream.until(lambda a: handle in a.ended)
        await emptied(worker, quick)
        await unread.until(lambda a: all(h in a.ended for h in waiting))
        assert all(unread.tokens[h] == entries(range(200)) for h in waiting)
