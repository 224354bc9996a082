"""A real process is kept up: seen ready, restarted where it was, given up with a reason, and ended in time."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from deploy.exits import EXIT_CONFIG
from deploy.reports import Loading, Ready, Report, encode
from deploy.restarts import RestartPolicy
from deploy.supervisor import Supervisor
from segue.errors import ConfigError, WorkerUnavailable

T = TypeVar("T")
POLICY = RestartPolicy(quick_death_s=60.0, quick_deaths_max=3, backoff_s=0.01, backoff_s_max=0.02)
READY = encode(Ready("127.0.0.1:5"))
SERVING = f"import sys, time; print({READY!r}, flush=True); sys.stdin.read()"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVING}"
HANGING = f"import sys; print({encode(Loading(1, 2))!r}, flush=True); sys.stdin.read()"


class Kept:
    """A supervisor of `python -c CODE`, and everything it said."""

    def __init__(self, code: str, *, start_s: float = 20.0) -> None:
        self.said: list[str] = []
        self.heard: list[Report] = []
        self.addresses: list[str | None] = []
        self._code = code
        self._changed = asyncio.Event()
        self.supervisor = Supervisor(
            "it", self._command, POLICY, start_s=start_s, say=self._note(self.said), heard=self._note(self.heard)
        )

    def _note(self, notes: list[T]) -> Callable[[T], None]:
        def note(text: T) -> None:
            notes.append(text)
            self._changed.set()

        return note

    async def until(self, done: Callable[[], bool]) -> None:
        """Waits for something to be said or heard."""
        async with asyncio.timeout(20):
            while not done():
                self._changed.clear()
                await self._changed.wait()

    def _command(self, address: str | None) -> Sequence[str]:
        self.addresses.append(address)
        return [sys.executable, "-c", self._code]

    async def pid(self, start: int) -> int:
        """Process id of the start-th start, once it is ready."""
        await self.until(lambda: len(self.ready) > start)
        return int(self.ready[start].rsplit("pid ", 1)[1].rstrip(")"))

    @property
    def ready(self) -> list[str]:
        return [line for line in self.said if "is ready" in line]


async def test_a_killed_process_is_started_again_where_it_was() -> None:
    kept = Kept(SERVING)
    running = asyncio.create_task(kept.supervisor.run())
    first = await kept.pid(0)
    os.kill(first, signal.SIGKILL)
    second = await kept.pid(1)
    assert second != first
    assert kept.addresses == [None, "127.0.0.1:5"]
    assert any("was killed by SIGKILL" in line for line in kept.said)
    await kept.supervisor.stop(10)
    await running


async def test_a_process_that_cannot_live_is_given_up_with_the_reason() -> None:
    kept = Kept("raise SystemExit(70)")
    with pytest.raises(WorkerUnavailable, match=r"broke an invariant .* giving up"):
        await kept.supervisor.run()
    assert len(kept.addresses) == 3


async def test_a_wrong_configuration_is_not_tried_twice() -> None:
    kept = Kept(f"raise SystemExit({EXIT_CONFIG})")
    with pytest.raises(ConfigError, match="cannot start"):
        await kept.supervisor.run()
    assert len(kept.addresses) == 1


async def test_reports_are_heard_and_other_output_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    kept = Kept(f"print('a library speaks'); print({encode(Loading(1, 2))!r}); {SERVING}")
    running = asyncio.create_task(kept.supervisor.run())
    assert await asyncio.wait_for(kept.supervisor.address, 20) == "127.0.0.1:5"
    await kept.supervisor.stop(10)
    await running
    assert kept.heard[0] == Loading(1, 2)
    assert "a library speaks" in capfd.readouterr().err


async def test_a_process_that_does_not_heed_sigterm_is_killed() -> None:
    kept = Kept(DEAF)
    running = asyncio.create_task(kept.supervisor.run())
    await kept.pid(0)
    await kept.supervisor.stop(0.1)
    await running
    assert any("is killed" in line for line in kept.said)


async def test_a_stopped_process_is_ended_too() -> None:
    kept = Kept(SERVING)
    running = asyncio.create_task(kept.supervisor.run())
    os.kill(await kept.pid(0), signal.SIGSTOP)
    await kept.supervisor.stop(0.1)
    await running


async def test_a_start_that_hangs_is_ended_and_counts_as_a_death() -> None:
    kept = Kept(HANGING, start_s=0.1)
    with pytest.raises(WorkerUnavailable, match="giving up"):
        await kept.supervisor.run()
    assert sum("was not ready" in line for line in kept.said) == 3


async def test_stopping_during_a_start_waits_for_no_readiness() -> None:
    kept = Kept(HANGING)
    running = asyncio.create_task(kept.supervisor.run())
    await kept.until(lambda: bool(kept.heard))
    started = time.monotonic()
    await kept.supervisor.stop(10)
    await asyncio.wait_for(running, 10)
    assert time.monotonic() - started < 10
