"""A worker with its gRPC server in the test's own process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from decode_service.host import Host
from decode_service.worker import Worker
from kv_transfer.hosting.config import WorkerConfig
from tests.decode_service.engines import ScriptedRunner, scripted

QUICK = WorkerConfig(heartbeat_s=0.05, silence_s=5.0, session_grace_s=5.0, drain_s=5.0)


@asynccontextmanager
async def served(
    runner: ScriptedRunner | None = None, config: WorkerConfig = QUICK, *, max_waiting: int = 64
) -> AsyncIterator[tuple[Worker, str]]:
    """The started worker and its address."""
    host = Host(config)
    await host.start(lambda: scripted(runner or ScriptedRunner(), max_waiting=max_waiting))
    try:
        yield host.worker, host.address
    finally:
        # What a test has left running is not waited for.
        await host.worker.drain(0.1)
        await host.stop()
