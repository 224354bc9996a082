"""How a worker ends: it drains, it says why, and an engine that broke takes nobody down silently."""

import asyncio
import logging
import time
from dataclasses import replace

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from decode_service.host import Host
from decode_service.worker import Worker
from kv_transfer.hosting.config import WorkerConfig
from segue.batch.request import FinishReason
from segue.errors import ConfigError, ServingError, WorkerUnavailable
from segue.ids import WorkerId
from tests.decode_service.engines import ScriptedRunner, expected
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import RouterEnd, spec
from tests.decode_service.served import QUICK, served


async def test_a_draining_worker_finishes_what_it_has_and_takes_nothing_new() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        handle = await router.generate(spec(max_tokens=10))
        draining = asyncio.create_task(worker.drain(10))
        with pytest.raises(WorkerUnavailable, match="shutting down"):
            await router.generate(spec("late"))
        gate.open()
        await draining
        await stream.until_end()
        assert stream.ended[handle].reason is FinishReason.LENGTH
        assert [token for _, _, token in stream.tokens[handle]] == [expected((5, 6, 7), i) for i in range(10)]


async def test_a_drain_ends_what_does_not_finish_in_time_with_an_error() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        handle = await router.generate(spec(max_tokens=200))
        await worker.drain(0.05)
        await stream.until_end()
        assert isinstance(stream.ended[handle].error, WorkerUnavailable)
        gate.open()


async def test_a_drain_does_not_wait_for_a_router_that_is_away() -> None:
    gate = Gate()
    async with served(ScriptedRunner(gate)) as (worker, address), RouterEnd(address) as router:
        async with router.attach():
            gate.close()
            await router.generate(spec(max_tokens=200))
        gate.allow(3)
        draining = asyncio.create_task(worker.drain(60))
        gate.open()
        await asyncio.wait_for(draining, 20)
        assert worker.live == ()


@pytest.mark.long
async def test_a_worker_is_ending_when_half_of_its_budget_is_left() -> None:
    """It does not wait with that for its next beat, and whoever attaches later hears it too."""
    gate, slow = Gate(), replace(QUICK, heartbeat_s=30.0, silence_s=60.0)
    async with (
        served(ScriptedRunner(gate), slow) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        await router.generate(spec(max_tokens=200))
        begun, loop = time.monotonic(), asyncio.get_running_loop()
        draining = loop.create_task(worker.drain(3.0))
        await stream.until(lambda a: a.beats > 0)
        async with router.attach("early") as early:
            await early.until(lambda a: a.beats > 0)
            assert not early.ending
            assert not stream.ending
        await stream.until(lambda a: a.ending)
        assert 1.5 <= time.monotonic() - begun < 3.0
        async with router.attach("another") as other:
            await other.until(lambda a: a.ending)
        await draining
        await stream.until_end()
        assert stream.ending
        gate.open()


async def test_a_worker_that_is_ending_says_so_with_every_beat() -> None:
    gate = Gate()
    async with (
        served(ScriptedRunner(gate)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        await router.generate(spec(max_tokens=200))
        draining = asyncio.create_task(worker.drain(1.0))
        await stream.until(lambda a: a.ending)
        told = stream.beats
        await stream.until(lambda a: a.beats >= told + 2)
        await draining
        gate.open()


async def test_an_idle_worker_drains_at_once() -> None:
    async with served() as (worker, _):
        await asyncio.wait_for(worker.drain(60), 5)


async def test_a_broken_invariant_names_the_requests_and_ends_them(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate()

    def step() -> None:
        gate()
        assert not broken, "page 7 has two owners"

    broken: list[bool] = []
    async with (
        served(ScriptedRunner(step)) as (worker, address),
        RouterEnd(address) as router,
        router.attach() as stream,
    ):
        gate.close()
        handle = await router.generate(spec("the-one", max_tokens=200))
        gate.allow(2)
        await stream.until(lambda a: len(a.tokens.get(handle, ())) == 2)
        broken.append(True)
        with caplog.at_level(logging.CRITICAL):
            gate.open()
            error = await asyncio.wait_for(worker.broken, 10)
        assert str(error).startswith("page 7 has two owners")
        assert "the-one" in caplog.text
        await stream.until_end()
        assert type(stream.ended[handle].error) is ServingError
        with pytest.raises(WorkerUnavailable):
            await router.generate(spec("next"))
        with pytest.raises(grpc.aio.AioRpcError):
            await router.status()


async def test_an_engine_that_cannot_be_built_says_why() -> None:
    worker = Worker(QUICK, WorkerId("w"))

    def build() -> None:
        raise ConfigError("no weights there")

    with pytest.raises(ConfigError, match="no weights"):
        await worker.start(build)  # type: ignore[arg-type]


async def test_a_port_in_use_is_named() -> None:
    async with served() as (_, address):
        port = int(address.rsplit(":", 1)[1])
        with pytest.raises(ConfigError, match=str(port)):
            Host(WorkerConfig(port=port))


async def test_health_says_serving() -> None:
    async with served() as (_, address), grpc.aio.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        for service in ("", "segue.v1.Worker"):
            reply = await check(health_pb2.HealthCheckRequest(service=service))
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
