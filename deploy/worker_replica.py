"""A worker in a Ray Serve replica: Serve starts, watches and ends it; requests reach it on a port of its own.

What needs torch is imported when a replica is made: whoever only deploys this class has no use for it.
"""

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import ray
import ray.util

from deploy.directory import Entry, Part
from deploy.directory_actor import DirectoryClient
from deploy.exits import EXIT_BROKEN
from deploy.loop_thread import LoopThread
from deploy.registration import Registration
from deploy.scaling import PRESSURE
from deploy.settings import Settings
from segue.batch.role import Role
from segue.threads import let_waiting_threads_sleep

if TYPE_CHECKING:
    from decode_service.host import Host
    from kv_transfer.hosting.loading import Loaded
    from prefill_service.host import PrefillHost

log = logging.getLogger("segue.deploy")

BuildEngine: TypeAlias = "Callable[[Settings], Loaded]"
"""Makes a worker's engine, on the thread that will own it."""


def build_engine(settings: Settings) -> "Loaded":
    """The engine that `settings` ask for. Raises CheckpointError and ConfigError."""
    from decode_service.retraction.parts import retraction_parts
    from kv_transfer.hosting.loading import load

    retraction = retraction_parts(settings.retraction, settings.engine.page_tokens)
    return load(settings.engine, lambda progress: None, lambda text: log.info("memory plan: %s", text), retraction)


class WorkerReplica:
    """One worker. Made when its engine is loaded and its port is open; Serve calls the other methods."""

    def __init__(self, settings: Settings, role: Role, log_level: str, build: BuildEngine) -> None:
        logging.basicConfig(level=log_level, format="%(levelname)s %(name)s: %(message)s")
        let_waiting_threads_sleep()
        if settings.replicas(role).cpus == 0:
            # Ray allows a process that asked for no cores one thread, which is not what asking for none means here.
            os.environ.pop("OMP_NUM_THREADS", None)
        self._loop = LoopThread("worker", asyncio.new_event_loop)
        self._life = self._loop.block_on(_Life.start(settings, role, build))

    async def check_health(self) -> None:
        """Raises when the engine is broken, and takes too long when it hangs: both are what Serve restarts."""
        await self._loop.run(self._life.host.worker.status())

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What Serve's autoscaler is told."""
        status = await self._loop.run(self._life.host.worker.status())
        return {PRESSURE: float(status.live_count)}

    async def __del__(self) -> None:
        """Serve's shutdown hook, awaited: no new work from now on, and what runs is finished within the budget."""
        await self._loop.run(self._life.stop())


class _Life:
    """A serving worker that is in the directory. Event-loop thread only."""

    def __init__(self, host: "Host | PrefillHost", registration: Registration) -> None:
        self.host = host
        self._registration = registration
        self._watch = asyncio.create_task(self._end_when_broken())
        registration.enter()

    @staticmethod
    async def start(settings: Settings, role: Role, build: BuildEngine) -> "_Life":
        """Raises what kept the worker from starting."""
        from deploy.worker import host_of

        address = settings.worker.host or ray.util.get_node_ip_address()
        ours = dataclasses.replace(
            settings,
            engine=settings.engine_of(role),
            worker=dataclasses.replace(settings.worker, host=address),
        )
        host = host_of(ours)
        await host.start(lambda: build(ours))
        about = host.worker.describe()
        entry = Entry(
            member_id=about.worker_id,
            part=Part(role),
            address=host.address,
            pid=os.getpid(),
            node=ray.get_runtime_context().get_node_id(),
            fingerprint=about.fingerprint,
        )
        return _Life(host, Registration(DirectoryClient(settings.ray.lease_s), entry, settings.ray.heartbeat_s))

    async def stop(self) -> None:
        """Refuses new work at once, whether or not the directory can be told."""
        self._watch.cancel()
        await asyncio.gather(self.host.stop(), self._registration.leave())

    async def _end_when_broken(self) -> None:
        """A broken invariant ends the process, as it does without Ray; Serve starts another."""
        from kv_transfer.hosting.process import end_process

        # Whoever cancels this task must not cancel what it waits for: a host that counts as broken drains nobody.
        await asyncio.shield(self.host.broken)
        await asyncio.gather(self.host.stop(), self._registration.leave())
        end_process(EXIT_BROKEN)
