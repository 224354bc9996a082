"""The process around a worker: SIGTERM drains it, a broken invariant ends it, and both say so by their exit code."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2

from kv_transfer.hosting.exits import EXIT_BROKEN, EXIT_OK
from segue.batch.request import FinishReason
from segue.errors import ServingError, WorkerUnavailable
from tests.decode_service.router_end import RouterEnd, spec


@contextmanager
def worker_process(kind: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A ready worker and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.scripted_worker", kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate(timeout=20)


async def serving(address: str) -> int:
    """What the health service answers."""
    async with grpc.aio.insecure_channel(address) as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        return int((await check(health_pb2.HealthCheckRequest(), timeout=10)).status)


async def test_sigterm_refuses_new_work_at_once_and_finishes_what_runs() -> None:
    with worker_process("paced") as (process, address):
        async with RouterEnd(address) as router, router.attach() as stream:
            handle = await router.generate(spec(max_tokens=250))
            await stream.until(lambda a: handle in a.tokens)
            assert await serving(address) == health_pb2.HealthCheckResponse.SERVING
            process.send_signal(signal.SIGTERM)
            while await serving(address) == health_pb2.HealthCheckResponse.SERVING:
                pass
            with pytest.raises(WorkerUnavailable, match="shutting down"):
                await router.generate(spec("late"))
            assert not (await router.status()).ready
            await stream.until_end()
            assert stream.ended[handle].reason is FinishReason.LENGTH
            assert len(stream.tokens[handle]) == 250
        assert process.wait(20) == EXIT_OK


async def test_a_broken_invariant_ends_the_requests_and_then_the_process() -> None:
    with worker_process("breaking") as (process, address):
        async with RouterEnd(address) as router, router.attach() as stream:
            handle = await router.generate(spec("the-one", max_tokens=250))
            await stream.until_end()
            assert type(stream.ended[handle].error) is ServingError
        _, errors = process.communicate(timeout=20)
        assert process.returncode == EXIT_BROKEN
        assert "the-one" in errors
        assert "page 7 has two owners" in errors


async def test_an_idle_worker_ends_at_once_on_sigterm() -> None:
    with worker_process("paced") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == EXIT_OK
