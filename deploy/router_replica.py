"""A router in a Ray Serve replica: Serve starts, watches and ends it; clients reach it on a port of its own."""

import asyncio
import dataclasses
import logging
import os
import uuid

import ray
import ray.util
import uvloop

from deploy.directory import Entry, Membership, Part
from deploy.directory_actor import DirectoryClient
from deploy.exits import EXIT_BROKEN
from deploy.loop_thread import LoopThread
from deploy.registration import Registration
from deploy.router import http_url
from deploy.settings import Settings
from router.config import RouterConfig
from router.fleet import Fleet
from router.server import Server
from router.text.tokenizer import Tokenizer
from segue.errors import ConfigError, WorkerUnavailable
from segue.wire.channel import TlsConfig

log = logging.getLogger("segue.deploy")

_PORT_TRY_S = 0.2


class RouterReplica:
    """One router. Made when its port is open; Serve calls the other methods."""

    def __init__(self, settings: Settings, log_level: str) -> None:
        logging.basicConfig(level=log_level, format="%(levelname)s %(name)s: %(message)s")
        # Every token passes through this loop, and nothing of Ray's.
        self._loop = LoopThread("router", uvloop.new_event_loop)
        self._life = self._loop.block_on(_Life.start(settings))

    async def check_health(self) -> None:
        """Takes too long when the router's loop hangs; a router that fails ends its process by itself."""
        await self._loop.run(asyncio.sleep(0))

    async def __del__(self) -> None:
        """Serve's shutdown hook, awaited: the port is free at once, and what runs is finished within the budget."""
        await self._loop.run(self._life.stop())


class _Life:
    """A serving router that follows the directory and is in it. Event-loop thread only."""

    def __init__(self, server: Server, serving: "asyncio.Task[None]", settings: Settings) -> None:
        self._server = server
        self._serving = serving
        self._heartbeat_s = settings.ray.heartbeat_s
        self._directory = DirectoryClient(settings.ray.lease_s)
        self._registration = Registration(self._directory, _entry(server), self._heartbeat_s)
        self._following = asyncio.create_task(self._follow(server.shell.fleet))
        for task in (self._serving, self._following):
            task.add_done_callback(_end_process)
        self._registration.enter()

    @staticmethod
    async def start(settings: Settings) -> "_Life":
        """Raises what kept the router from starting."""
        server = await _bind(settings.router, Tokenizer.from_folder(settings.engine.model), settings.tls)
        ready = asyncio.Event()
        serving = asyncio.create_task(server.serve(ready.set))
        await ready.wait()
        return _Life(server, serving, settings)

    async def stop(self) -> None:
        """Takes nothing new, and returns when what runs is finished or its budget is spent."""
        for task in (self._serving, self._following):
            task.remove_done_callback(_end_process)
        self._server.give_way()
        await asyncio.gather(self._serving, self._registration.leave())
        self._following.cancel()

    async def _follow(self, fleet: Fleet) -> None:
        """Keeps the fleet what the directory says. While that is away or new, workers are added but none dropped."""
        known: tuple[Entry, ...] = ()
        while True:
            try:
                known = _merged(known, await self._directory.members())
            except WorkerUnavailable as error:
                log.warning("%s", error.message)
            # Also when nothing is new: workers that left are let go of at a later call.
            fleet.set_addresses(
                [entry.address for entry in known if entry.part in (Part.BOTH, Part.DECODE)],
                [entry.address for entry in known if entry.part is Part.PREFILL],
            )
            await asyncio.sleep(self._heartbeat_s)


def _merged(known: tuple[Entry, ...], members: Membership) -> tuple[Entry, ...]:
    if members.complete:
        return members.entries
    return tuple({entry.member_id: entry for entry in (*known, *members.entries)}.values())


async def _bind(config: RouterConfig, tokenizer: Tokenizer, tls: TlsConfig) -> Server:
    """A router that gives way frees the port at once, a killed one when the system has seen it die."""
    loop = asyncio.get_running_loop()
    config = dataclasses.replace(config, host=config.host or ray.util.get_node_ip_address())
    give_up_at = loop.time() + config.drain_s
    while True:
        try:
            return Server(config, tokenizer, [], tls=tls)
        except ConfigError:
            if loop.time() >= give_up_at:
                raise
            await asyncio.sleep(_PORT_TRY_S)


def _entry(server: Server) -> Entry:
    host, port = server.address
    if host in ("0.0.0.0", "::"):
        host = ray.util.get_node_ip_address()
    return Entry(
        member_id=f"router-{uuid.uuid4().hex[:12]}",
        part=Part.ROUTER,
        address=http_url(host, port),
        pid=os.getpid(),
        node=ray.get_runtime_context().get_node_id(),
    )


def _end_process(task: "asyncio.Task[None]") -> None:
    """Neither serving nor following ends but by our own mistake, which must not vanish with this thread."""
    log.critical("the router failed", exc_info=None if task.cancelled() else task.exception())
    logging.shutdown()
    os._exit(EXIT_BROKEN)
