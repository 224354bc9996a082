"""One process that `segue serve` keeps: start it, hear its reports, know when it ends, end it; restarts nothing."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence

from deploy.reports import Ready, Report, decode

_LINE_BYTES_MAX = 1 << 20


class Child:
    """A started process. It leads a process group of its own, so that a terminal's Ctrl-C reaches only us."""

    def __init__(self, process: asyncio.subprocess.Process, heard: Callable[[Report], None]) -> None:
        self._process = process
        self._heard = heard
        self.ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._listening = asyncio.create_task(self._listen())

    @staticmethod
    async def start(command: Sequence[str], heard: Callable[[Report], None]) -> "Child":
        """Runs a command. Its standard error is ours; its standard input stays open as long as we live."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
        return Child(process, heard)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """The exit code, negative for a signal."""
        await self._listening
        return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if there still is a process."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _listen(self) -> None:
        """Reads standard output to its end, which comes with the process; what is no report is passed on."""
        stdout = self._process.stdout
        assert stdout is not None, "the child was started with a pipe"
        async for line in stdout:
            text = line.decode(errors="replace").rstrip("\n")
            report = decode(text)
            if report is None:
                print(text, file=sys.stderr, flush=True)
                continue
            self._heard(report)
            if isinstance(report, Ready) and not self.ready.done():
                self.ready.set_result(report.address)
        self.ready.cancel()
