"""A handoff worker in a process of its own, which takes lines of JSON.

Each command line gets one line back that begins with `@`; libraries write to the same stream as they please.
"""

import asyncio
import json
import os
import selectors
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from segue.errors import ServingError
from segue.state.spec import ComponentName
from tests.support.forks import origin, serve_forks
from tests.support.handoff_worker import Script, Setting, Worker


class HandoffProcess:
    """The parent's handle on one worker process."""

    def __init__(self, setting: Setting) -> None:
        self._process = origin("tests.support.handoff_process").fork(json.dumps(asdict(setting)))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._read = b""
        self._address = ""

    @property
    def address(self) -> str:
        """Where the worker serves; waits until it does."""
        if not self._address:
            self._address = str(self._answer(60.0)["address"])
        return self._address

    def ask(self, timeout_s: float = 30.0, **command: object) -> dict[str, Any]:
        """One command and its answer."""
        self.tell(**command)
        return self._answer(timeout_s)

    def tell(self, **command: object) -> None:
        """A command whose answer is read later by `answer`."""
        assert self.address
        os.write(self._process.stdin, json.dumps(command).encode() + b"\n")

    def answer(self, timeout_s: float = 30.0) -> dict[str, Any]:
        """The next answer."""
        return self._answer(timeout_s)

    def receive(self, sender: "HandoffProcess", script: Script) -> dict[str, Any]:
        """Runs one handoff from `sender` to this worker."""
        return self.ask(receive=asdict(script), address=sender.address)

    def start_receiving(self, sender: "HandoffProcess", script: Script) -> None:
        """Begins a handoff; its end comes as the next `answer`. Other commands are answered meanwhile by `state`."""
        self.tell(begin=asdict(script), address=sender.address)

    def state(self) -> dict[str, Any]:
        """Pool sets and what is in flight."""
        return self.ask(state=True)

    def until(self, timeout_s: float = 20.0, **wanted: object) -> dict[str, Any]:
        """The first state that has these values. Each question is answered after a turn of the worker's own clock."""
        deadline = time.monotonic() + timeout_s
        while True:
            state = self.state()
            if all(state[name] == value for name, value in wanted.items()):
                return state
            assert time.monotonic() < deadline, f"not {wanted} within {timeout_s} s: {state}"

    def signal(self, number: signal.Signals) -> None:
        self._process.signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits until the process is gone."""
        self._process.signal(signal.SIGKILL)
        assert self._process.ended(20), "the worker does not end"

    def close(self) -> None:
        self.kill()
        self._selector.close()
        self._process.close()

    def _answer(self, timeout_s: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while True:
            line, newline, rest = self._read.partition(b"\n")
            if newline:
                self._read = rest
                if line.startswith(b"@"):
                    answer: dict[str, Any] = json.loads(line[1:])
                    return answer
                continue
            assert self._selector.select(max(0.0, deadline - time.monotonic())), f"no answer within {timeout_s} s"
            found = os.read(self._process.stdout, 65536)
            assert found, "the worker ended"
            self._read += found


@contextmanager
def handoff_pair(sender: Setting, receiver: Setting) -> Iterator[tuple[HandoffProcess, HandoffProcess]]:
    """A sender and a receiver, killed at the end whatever state they are in."""
    started: list[HandoffProcess] = []
    try:
        started += [HandoffProcess(setting) for setting in (sender, receiver)]
        for process in started:
            assert process.address
        yield started[0], started[1]
    finally:
        for process in started:
            process.close()


async def _serve(setting: Setting) -> None:
    worker = Worker(setting)
    _say({"address": await worker.start()})
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        match command:
            case {"receive": script, "address": address} | {"begin": script, "address": address}:
                task = asyncio.create_task(_receive(worker, address, Script(**script)))
                running.add(task)
                task.add_done_callback(running.discard)
                if "receive" in command:
                    await task
            case {"state": True}:
                await worker.turn()
                _say(_state(worker))
            case {"go": True}:
                worker.go.set()
                _say({})
    await worker.stop()


async def _receive(worker: Worker, address: str, script: Script) -> None:
    try:
        _say(await worker.receive(address, script))
    except ServingError as error:
        _say({"error": type(error).__name__, "message": error.message})


def _state(worker: Worker) -> dict[str, object]:
    counts = {name.value: pool.counts() for name, pool in worker.pools.items()}
    return {
        "held": sum(one.held for one in counts.values()),
        "reserved": sum(one.reserved for one in counts.values()),
        "quarantined": sum(one.quarantined for one in counts.values()),
        "pages": worker.pools[ComponentName.FULL].usable_count,
        "page_tokens": worker.setting.page_tokens,
        "in_flight": worker.in_flight(),
        "handed": len(worker.handed),
        "pushed": worker.pushed(),
        "errors": [type(one.error).__name__ for one in worker.handed if one.error is not None],
    }


def _say(answer: dict[str, object]) -> None:
    sys.stdout.write("@" + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve_forks(int(sys.argv[1]), lambda setting: asyncio.run(_serve(Setting(**json.loads(setting)))))
