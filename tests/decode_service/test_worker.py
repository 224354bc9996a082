"""A router talks to a worker over gRPC: requests in, one message a step out, and typed errors with their class."""

import asyncio

import pytest

from decode_service.worker import Worker
from segue.batch.request import FinishReason
from segue.errors import (
    ContextTooLong,
    DeadlineExceeded,
    DuplicateRequest,
    FingerprintMismatch,
    InvalidRequest,
    QueueFull,
    WorkerUnavailable,
)
from segue.ids import Handle, RouterId
from segue.v1 import worker_pb2 as pb
from segue.wire import Attach, Cancel, Finish, WorkerStatus, description_from_proto
from tests.decode_service.engines import ScriptedRunner, expected
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import Attachment, RouterEnd, spec
from tests.decode_service.served import served


def entries(prompt: tuple[int, ...], indices: range, attempt: int = 1) -> list[tuple[int, int, int]]:
    """What a router must be told, once each and in order."""
    return [(attempt, index, expected(prompt, index)) for index in indices]


def whole(status: WorkerStatus) -> bool:
    """Whether no pool holds anything for anybody."""
    return all(pool.free + pool.sink == pool.capacity for pool in status.pools)


async def offered(worker: Worker, router: RouterEnd, count: int) -> None:
    """Until so many live requests are on their way to the engine, or there."""
    async with asyncio.timeout(10):
        while len(worker.live) < count:
            await router.stub.Describe(pb.DescribeRequest())


async def let_go(worker: Worker, router: RouterEnd) -> None:
    """Until the engine was told to let go of everything that is live."""
    async with asyncio.timeout(10):
        while not all(request.leaving for request in worker.live):
            await router.stub.Describe(pb.DescribeRequest())


async def has_ended(attachment: Attachment, *handles: Handle) -> None:
    await attachment.until(lambda a: all(handle in a.ended for handle in handles))


async def test_an_output_arrives_in_order_and_ends_with_its_usage() -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        handle = await router.generate(spec(max_tokens=8))
        await has_ended(stream, handle)
        assert stream.tokens[handle] == entries((5, 6, 7), range(8))
        end = stream.ended[handle]
        assert end.reason is FinishReason.LENGTH
        assert (end.usage.prompt_tokens, end.usage.completion_tokens) == (3, 8)
        assert whole(await router.status())


async def test_a_step_of_many_requests_is_one_message() -> None:
    gate = Gate()
    gate.close()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        first = asyncio.create_task(router.generate(spec("first", max_tokens=200)))
        gate.allow(1)
        await first
        rest = [asyncio.create_task(router.generate(spec(f"q{i}", max_tokens=4))) for i in range(5)]
        await offered(worker, router, 6)
        gate.allow(1)
        handles = await asyncio.gather(*rest)
        gate.allow(1)
        await stream.until(lambda a: any(len(set(news.handles)) == 6 for news in a.messages))
        gate.open()
        await has_ended(stream, *handles)


async def test_a_continuation_begins_at_its_own_index_and_never_repeats() -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        handle = await router.generate(spec(emitted=(11, 12, 13), max_tokens=6, attempt=2))
        await has_ended(stream, handle)
        assert stream.tokens[handle] == entries((5, 6, 7), range(3, 6), attempt=2)


async def test_logprobs_travel_only_when_somebody_asked() -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        await has_ended(stream, await router.generate(spec("plain")))
        assert all(not news.logprobs for news in stream.messages)
        await has_ended(stream, await router.generate(spec("asked", logprobs=0)))
        assert [value for news in stream.messages for value in news.logprobs] == [-0.5] * 8


async def test_a_cancel_ends_the_request_and_gives_everything_back() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        generating = asyncio.create_task(router.generate(spec(max_tokens=200)))
        gate.allow(1)
        handle = await generating
        await stream.until(lambda a: handle in a.tokens)
        await stream.send(Cancel(handle, 1))
        await stream.send(Cancel(handle, 1))
        await let_go(worker, router)
        gate.open()
        await has_ended(stream, handle)
        assert stream.ended[handle].reason is FinishReason.CANCELLED
        assert whole(await router.status())


async def test_a_cancel_of_another_attempt_is_ignored() -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        handle = await router.generate(spec(attempt=3, max_tokens=60))
        await stream.send(Cancel(handle, 2))
        await has_ended(stream, handle)
        assert stream.ended[handle].reason is FinishReason.LENGTH


async def test_a_stop_found_by_the_router_ends_the_output_where_it_says() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        generating = asyncio.create_task(router.generate(spec(max_tokens=200)))
        gate.allow(1)
        handle = await generating
        gate.allow(4)
        await stream.until(lambda a: len(a.tokens.get(handle, ())) >= 4)
        await stream.send(Finish(handle, 1, 2))
        await let_go(worker, router)
        gate.open()
        await has_ended(stream, handle)
        assert stream.ended[handle].reason is FinishReason.STOP
        assert stream.ended[handle].usage.completion_tokens == 2
        assert whole(await router.status())


async def test_a_passed_deadline_is_an_error_of_its_own_class() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (_, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        first = await router.generate(spec("first", max_tokens=1))
        await has_ended(stream, first)
        handle = await router.generate(spec("late", deadline_s=0.0))
        await has_ended(stream, handle)
        assert isinstance(stream.ended[handle].error, DeadlineExceeded)
        assert whole(await router.status())


async def test_a_router_without_a_session_is_refused() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        with pytest.raises(WorkerUnavailable, match="no session"):
            await router.generate(spec())


async def test_the_same_attempt_twice_is_a_duplicate_and_a_newer_one_replaces_it() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (_, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        generating = asyncio.create_task(router.generate(spec(max_tokens=200)))
        gate.allow(1)
        older = await generating
        with pytest.raises(DuplicateRequest):
            await router.generate(spec(max_tokens=200))
        gate.open()
        newer = await router.generate(spec(max_tokens=20, attempt=2))
        await has_ended(stream, older, newer)
        assert stream.ended[older].reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
        assert stream.tokens[newer] == entries((5, 6, 7), range(20), attempt=2)


async def test_an_ended_request_may_come_again_under_its_old_name() -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        first = await router.generate(spec("again"))
        await has_ended(stream, first)
        second = await router.generate(spec("again"))
        await has_ended(stream, second)
        assert first != second


async def test_what_cannot_be_served_is_refused_and_leaves_nothing_behind() -> None:
    async with served() as (worker, address), RouterEnd(address) as router, router.attach():
        with pytest.raises(ContextTooLong):
            await router.generate(spec(max_tokens=10_000))
        with pytest.raises(InvalidRequest):
            await router.generate(spec(prompt=()))
        with pytest.raises(InvalidRequest):
            await router.generate(spec(prompt=(10**6,)))
        assert worker.live == ()
        assert whole(await router.status())


async def test_a_full_queue_refuses_and_serves_the_others() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate), max_waiting=2) as (_, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        outcomes = [asyncio.create_task(router.generate(spec(f"q{i}", max_tokens=4))) for i in range(16)]
        gate.open()
        answers = await asyncio.gather(*outcomes, return_exceptions=True)
        handles = [answer for answer in answers if isinstance(answer, int)]
        assert handles
        assert all(isinstance(answer, int | QueueFull) for answer in answers)
        await has_ended(stream, *(Handle(handle) for handle in handles))
        assert whole(await router.status())


async def test_a_router_that_leaves_its_generate_call_leaves_no_request_behind() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        running = asyncio.create_task(router.generate(spec("running", max_tokens=30)))
        gate.allow(1)
        await running
        leaving = asyncio.create_task(router.generate(spec("leaving", max_tokens=200)))
        await offered(worker, router, 2)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        gate.open()
        await has_ended(stream, await running)
        async with asyncio.timeout(10):
            while worker.live:
                await router.status()
        assert whole(await router.status())


async def test_another_protocol_version_is_refused_with_both_named() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        call = router.stub.Session()
        await call.write(pb.RouterMessage(attach=pb.Attach(router_id="r", protocol_version=99)))
        stream = Attachment(call)
        with pytest.raises(FingerprintMismatch, match="protocol 99"):
            await stream.until(lambda a: a.hello is not None)


async def test_a_session_that_does_not_begin_with_attach_is_refused() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        stream = Attachment(router.stub.Session())
        await stream.send(Cancel(Handle(1), 1))
        with pytest.raises(InvalidRequest, match="Attach"):
            await stream.until(lambda a: a.hello is not None)


async def test_a_second_attach_on_one_stream_is_refused() -> None:
    async with served() as (_, address), RouterEnd(address) as router, router.attach() as stream:
        await stream.send(Attach(RouterId("r")))
        with pytest.raises(InvalidRequest, match="once"):
            await stream.until(lambda a: False)


async def test_a_description_names_model_limits_and_fingerprint() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        description = description_from_proto(await router.stub.Describe(pb.DescribeRequest()))
        assert (description.model_name, description.role) == ("scripted", "both")
        assert (description.max_len, description.vocab_size, description.eos_token_ids) == (256, 1000, (1,))
        assert description.fingerprint == "f" * 32


async def test_the_status_of_an_idle_worker_adds_up() -> None:
    async with served() as (_, address), RouterEnd(address) as router:
        statuses = await asyncio.gather(*(router.status() for _ in range(8)))
        for status in statuses:
            assert status.ready
            assert (status.running, status.waiting) == (0, 0)
            assert {pool.component for pool in status.pools} == {"full", "recurrent"}
            assert all(pool.unit_bytes > 0 for pool in status.pools)
