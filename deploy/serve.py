"""`segue serve --no-ray`: workers and a router as child processes, kept up until told to end; serves nothing itself."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any

from deploy.commands import WORKER_COMMANDS
from deploy.console import Console
from deploy.exits import EXIT_OK
from deploy.health import Health, HealthPolicy, RouterHealth, WorkerHealth
from deploy.restarts import RestartPolicy
from deploy.settings import Settings
from deploy.supervisor import Supervisor
from segue.batch.role import Role
from segue.errors import ConfigError

EXAMPLE_QUESTION = (
    "John is 12 years old. In 8 years his cousin Barbara will be 4 times as old as John is now. "
    "How old is Barbara right now?"
)
"""One that the bundled model can answer (it knows only its own kind of problem)."""
_KILL_AFTER_S = 3.0
"""Beyond the drain budget, what a process gets to leave by itself."""


async def serve(settings: Settings, forwarded: Sequence[str], console: Console) -> int:
    """Runs until SIGINT or SIGTERM; a second one ends everything at once. `forwarded` are flags for every child.

    Raises ConfigError for what cannot work, and WorkerUnavailable when a process cannot be kept up.
    """
    check(settings)
    deployment = _Deployment(settings, forwarded, console)
    stop = asyncio.Event()

    def told() -> None:
        if stop.is_set():
            console.say("killing everything")
            deployment.kill()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told)
    try:
        await deployment.run_until(stop)
    finally:
        await deployment.stop()
    console.say("everything has ended")
    return EXIT_OK


class _Deployment:
    """The supervisors of all children, and the tasks that run them."""

    def __init__(self, settings: Settings, forwarded: Sequence[str], console: Console) -> None:
        self._settings = settings
        self._console = console
        drain_s = settings.serve.drain_s
        self._forwarded = [*forwarded, "--set", f"worker.drain_s={drain_s}", "--set", f"router.drain_s={drain_s}"]
        self._workers = {
            role: [self._worker(role, index) for index in range(settings.replicas(role).replicas)]
            for role in settings.roles
        }
        self._router: Supervisor | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_until(self, stop: asyncio.Event) -> None:
        """Starts workers, then the router, and keeps them up. Raises what keeps one of them from running."""
        counts = ", ".join(f"{len(workers)} {role}" for role, workers in self._workers.items())
        self._console.say(f"serving {self._settings.engine.model}; workers: {counts}")
        for worker in self._all_workers:
            self._keep(worker)
        stopped = asyncio.create_task(stop.wait())
        try:
            if not await self._reached(asyncio.gather(*(worker.address for worker in self._all_workers)), stopped):
                return
            self._router = self._router_for_workers()
            self._keep(self._router)
            if not await self._reached(self._router.address, stopped):
                return
            self._console.say(invitation(self._settings, self._router.address.result()))
            await self._reached(asyncio.get_running_loop().create_future(), stopped)
        finally:
            stopped.cancel()

    async def stop(self) -> None:
        """Ends the router, which lets its requests finish, and then the workers, which have none left."""
        self._console.say(f"ending; requests get {self._settings.serve.drain_s:.0f} s to finish")
        if self._router is not None:
            await self._router.stop(self._settings.serve.drain_s + _KILL_AFTER_S)
        await asyncio.gather(*(worker.stop(_KILL_AFTER_S) for worker in self._all_workers))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """Ends every child at once."""
        for child in self._children:
            child.kill()

    @property
    def _children(self) -> list[Supervisor]:
        return [*([self._router] if self._router else []), *self._all_workers]

    @property
    def _all_workers(self) -> list[Supervisor]:
        return [worker for workers in self._workers.values() for worker in workers]

    def _keep(self, supervisor: Supervisor) -> None:
        self._tasks.add(asyncio.create_task(supervisor.run()))

    async def _reached(self, goal: asyncio.Future[Any], stopped: asyncio.Task[bool]) -> bool:
        """Whether `goal` came before the stop. Raises what ended a supervisor before either."""
        waited: set[asyncio.Future[Any]] = {goal, stopped, *self._tasks}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        for task in self._tasks:
            if task.done():
                goal.cancel()
                # Those that it gathers are cancelled with it, and somebody must have looked at it.
                await asyncio.gather(goal, return_exceptions=True)
                task.result()
        return not stopped.done()

    def _worker(self, role: Role, index: int) -> Supervisor:
        def command(address: str | None) -> Sequence[str]:
            port = address.rsplit(":", 1)[1] if address else "0"
            return self._command(WORKER_COMMANDS[role], "--set", f"worker.port={port}")

        return self._supervisor(f"{role} {index}", command, lambda address: WorkerHealth(address, self._settings.tls))

    def _router_for_workers(self) -> Supervisor:
        """The router before the workers that there are, whose addresses stay what they are."""
        flags = [
            part
            for role, workers in self._workers.items()
            for worker in workers
            for part in (f"--{WORKER_COMMANDS[role]}", worker.address.result())
        ]

        def command(address: str | None) -> Sequence[str]:
            # Clients find a restarted router where it was, also when the system chose its port.
            port = ["--set", f"router.port={address.rsplit(':', 1)[1]}"] if address else []
            return self._command("router", *port, *flags)

        return self._supervisor("router", command, RouterHealth)

    def _command(self, name: str, *flags: str) -> list[str]:
        tie = ["--tied-to", str(os.getpid())]
        return [sys.executable, "-m", "deploy.cli", name, *self._forwarded, *flags, *tie]

    def _supervisor(
        self, name: str, command: Callable[[str | None], Sequence[str]], health: Callable[[str], Health]
    ) -> Supervisor:
        config = self._settings.serve
        policy = RestartPolicy(
            quick_death_s=config.quick_death_s,
            quick_deaths_max=config.quick_deaths_max,
            backoff_s=config.backoff_s,
            backoff_s_max=config.backoff_s_max,
        )
        return Supervisor(
            name,
            command,
            policy,
            HealthPolicy(open=health, every_s=config.health_s, timeout_s=config.health_timeout_s),
            start_s=config.start_s,
            say=self._console.say,
            heard=self._console.listener(name),
        )


def check(settings: Settings) -> None:
    """Raises ConfigError for what would only fail minutes later, in another process."""
    model = settings.engine.model
    if not model.is_dir():
        raise ConfigError(f"there is no model folder {model}", param="model")
    if settings.snapshot.folder:
        from segue.state.snapshot.folder import SnapshotFolder

        SnapshotFolder.open(settings.snapshot)
    host, port = settings.router.host, settings.router.port
    with contextlib.closing(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on port {port} of {host}: {error.strerror}; choose another with --port", param="port"
            ) from error


def invitation(settings: Settings, url: str) -> str:
    """What a person may try on a server that is ready."""
    body = {"model": settings.engine.name or settings.engine.model.resolve().name, "stream": True}
    body["messages"] = [{"role": "user", "content": EXAMPLE_QUESTION}]
    return (
        f"ready on {url}; try `segue chat --url {url}`, or\n"
        f"  curl {url}/v1/chat/completions -H 'content-type: application/json' -d '{json.dumps(body)}'"
    )
