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
from deploy.health import Health, HealthPolicy, RouterHealth
from deploy.reports import Loading, Ready, Report, encode
from deploy.restarts import RestartPolicy
from deploy.supervisor import Supervisor
from segue.errors import ConfigError, WorkerUnavailable

T = TypeVar("T")
POLICY = RestartPolicy(quick_death_s=60.0, quick_deaths_max=3, backoff_s=0.01, backoff_s_max=0.02)
READY = encode(Ready("127.0.0.1:5"))
SERVING = f"import sys, time; print({READY!r}, flush=True); sys.stdin.read()"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SERVING}"
# One that answers for its health, as a router does.
ANSWERING = f"""
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/liveness" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
print({encode(Ready("ADDRESS"))!r}.replace("ADDRESS", f"http://127.0.0.1:{{server.server_port}}"), flush=True)
server.serve_forever()
"""
HANGING = f"import sys; print({encode(Loading(1, 2))!r}, flush=True); sys.stdin.read()"


class Content:
    """The health of a process that is not asked."""

    async def answers(self, timeout_s: float) -> bool:
        return True

    async def aclose(self) -> None:
        pass


class Kept:
    """A supervisor of `python -c CODE`, and everything it said."""

    def __init__(
        self,
        code: str,
        *,
        start_s: float = 20.0,
        health: Callable[[str], Health] = lambda address: Content(),
        silence_s: float = 20.0,
    ) -> None:
        self.said: list[str] = []
        self.heard: list[Report] = []
        self.addresses: list[str | None] = []
        self._code = code
        self._changed = asyncio.Event()
        self.supervisor = Supervisor(
            "it",
            self._command,
            POLICY,
            HealthPolicy(open=health, every_s=0.05, timeout_s=silence_s),
            start_s=start_s,
            say=self._note(self.said),
            heard=self._note(self.heard),
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


async def test_a_frozen_process_is_killed_and_started_again_in_time() -> None:
    # In time: `until` does not wait for much longer.
    kept = Kept(ANSWERING, health=RouterHealth, silence_s=1.0)
    running = asyncio.create_task(kept.supervisor.run())
    first = await kept.pid(0)
    frozen_at = time.monotonic()
    os.kill(first, signal.SIGSTOP)
    await kept.until(lambda: any("answered nothing for 1 s and is killed" in line for line in kept.said))
    assert time.monotonic() - frozen_at > 0.9
    assert await kept.pid(1) != first
    assert any("was killed by SIGKILL" in line for line in kept.said)
    await kept.supervisor.stop(10)
    await running


async def test_a_process_that_answers_is_left_alone_for_longer_than_silence_may_last() -> None:
    silence_s = 0.2
    began = time.monotonic()
    long_enough = asyncio.Event()

    class Counted(Content):
        async def answers(self, timeout_s: float) -> bool:
            if time.monotonic() - began > 2 * silence_s:
                long_enough.set()
            return True

    kept = Kept(SERVING, health=lambda address: Counted(), silence_s=silence_s)
    running = asyncio.create_task(kept.supervisor.run())
    pid = await kept.pid(0)
    await asyncio.wait_for(long_enough.wait(), 20)
    assert len(kept.ready) == 1
    os.kill(pid, 0)
    await kept.supervisor.stop(10)
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
