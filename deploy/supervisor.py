"""Keeps one process up: starts it, starts it again when it dies or falls silent, gives up when that is of no use."""

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing

from deploy.child import Child
from deploy.exits import EXIT_CONFIG, died_how
from deploy.health import Health, HealthPolicy, until_silent
from deploy.reports import Report
from deploy.restarts import RestartPolicy, Restarts
from segue.errors import ConfigError, WorkerUnavailable


class Supervisor:
    """One kept process. `say` is told everything that a person should see.

    `command` is asked for at every start; it gets the address that the process had before, None at the first start, so
    that a restarted worker is found where its router knows it.
    """

    def __init__(
        self,
        name: str,
        command: Callable[[str | None], Sequence[str]],
        policy: RestartPolicy,
        health: HealthPolicy,
        *,
        start_s: float,
        say: Callable[[str], None],
        heard: Callable[[Report], None],
    ) -> None:
        self.name = name
        self._command = command
        self._restarts = Restarts(policy)
        self._health = health
        self._start_s = start_s
        self._say = say
        self._heard = heard
        self._child: Child | None = None
        self._address: str | None = None
        self._stopping = False
        self.address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keeps the process up until `stop`.

        Raises ConfigError when it can never run like this, WorkerUnavailable when it dies too often.
        """
        while not self._stopping:
            started = time.monotonic()
            code = await self._live()
            self._child = None
            if self._stopping:
                return
            if code == EXIT_CONFIG:
                raise ConfigError(f"{self.name} cannot start; its own message says why")
            lived_s = time.monotonic() - started
            wait_s = self._restarts.died(lived_s)
            how = f"{self.name} {died_how(code)} after {lived_s:.1f} s"
            if wait_s is None:
                raise WorkerUnavailable(f"{how}; giving up")
            self._say(f"{how}; starting it again in {wait_s:.2g} s")
            await asyncio.sleep(wait_s)

    async def stop(self, budget_s: float) -> None:
        """Asks the process to end, and ends it when the budget is used up."""
        self._stopping = True
        child = self._child
        if child is None:
            return
        child.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(child.wait()), budget_s)
        except TimeoutError:
            self._say(f"{self.name} did not end within {budget_s:.0f} s and is killed")
            self.kill()
            await child.wait()

    def kill(self) -> None:
        """Ends the process at once, also where it is stopped."""
        self._stopping = True
        if self._child is not None:
            self._child.signal(signal.SIGKILL)

    async def _live(self) -> int:
        self._child = child = await Child.start(self._command(self._address), self._heard)
        if self._stopping:
            # Told to stop while the process was being made: nobody has signalled it yet.
            child.signal(signal.SIGKILL)
        try:
            async with asyncio.timeout(self._start_s):
                self._address = await child.ready
        except TimeoutError:
            self._say(f"{self.name} was not ready within {self._start_s:.0f} s and is killed")
            child.signal(signal.SIGKILL)
        except asyncio.CancelledError:
            if not child.ready.cancelled():
                raise
        else:
            self._say(f"{self.name} is ready on {self._address} (pid {child.pid})")
            if not self.address.done():
                self.address.set_result(self._address)
            return await self._watched(child, self._address)
        return await child.wait()

    async def _watched(self, child: Child, address: str) -> int:
        """The exit code of a process that is killed when it answers nothing for too long.

        While it is frozen its peers must keep what it could still write to; its death is the proof that it will not.
        """
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._kill_when_silent(child, self._health.open(address)))
            code = await child.wait()
            watching.cancel()
        return code

    async def _kill_when_silent(self, child: Child, health: Health) -> None:
        async with aclosing(health):
            await until_silent(health, self._health)
        # One that was told to end has its own time for that.
        if not self._stopping:
            self._say(f"{self.name} answered nothing for {self._health.timeout_s:.3g} s and is killed")
            child.signal(signal.SIGKILL)
