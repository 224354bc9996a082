"""`segue serve` as a user runs it: a real process tree on ports that the system chose, watched by its own output."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from deploy.family import family
from segue.v1 import worker_pb2 as pb
from segue.wire import WorkerStatus, status_from_proto

SMALL = ["engine.state_bytes=134217728", "engine.max_running=8", "engine.threads=1", "engine.deterministic=true"]
WATCHFUL = [
    "worker.heartbeat_s=0.25",
    "worker.silence_s=2",
    "worker.session_grace_s=2",
    "router.heartbeat_s=0.25",
    "router.heartbeat_timeout_s=2",
    "router.reattach_grace_s=1",
    "serve.drain_s=3",
    # Asked twice, a prompt is computed by the prefill worker twice.
    "transfer.extend_tokens=0",
]
# A worker is named by its role and a number; under Ray by its role and an id that is new at every start.
_READY = re.compile(
    r"segue: (?P<name>router|both|prefill|decode)(?: \d+| [a-z]+-\w+)? is ready on (?P<address>\S+) "
    r"\(pid (?P<pid>\d+)(?: on node (?P<node>\w+))?"
)


class Deployment:
    """A running `segue serve`. Its lines are kept; every wait has a limit and shows them when it fails."""

    def __init__(self, process: subprocess.Popen[str], patience_s: float) -> None:
        self.process = process
        self._patience_s = patience_s
        self.lines: list[str] = []
        self._said = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """The router's URL."""
        return self.ready("router")[-1][0]

    def ready(self, name: str) -> list[tuple[str, int]]:
        """Address and process id of every start of a process so far."""
        found = [match for line in self.lines if (match := _READY.match(line)) and match["name"] == name]
        return [(match["address"], int(match["pid"])) for match in found]

    def node(self, name: str) -> str:
        """How the id of the Ray node begins that a process started on last."""
        return [match["node"] for line in self.lines if (match := _READY.match(line)) and match["name"] == name][-1]

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Waits until serve's output says so."""
        with self._said:
            assert self._said.wait_for(done, self._patience_s), f"{what} did not happen:\n" + "\n".join(self.lines)

    def restarted(self, name: str, starts_before: int) -> None:
        """Waits until a process is ready once more than before."""
        self.until(lambda: len(self.ready(name)) > starts_before, f"a restart of {name}")

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Signals the latest start of a process. Returns how often it had started."""
        starts = self.ready(name)
        os.kill(starts[-1][1], number)
        return len(starts)

    @property
    def roles(self) -> list[str]:
        """The roles of which there is a worker."""
        return [name for name in ("prefill", "decode", "both") if self.ready(name)]

    def status(self, role: str) -> WorkerStatus:
        """What the worker of a role says of itself, that which started last if there are several."""
        return self._status(self.ready(role)[-1][0])

    def every_status(self, role: str) -> list[WorkerStatus]:
        """What all workers of a role say of themselves; without Ray, where they come back under their addresses."""
        return [self._status(address) for address in dict(self.ready(role))]

    def _status(self, address: str) -> WorkerStatus:
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(
                "/segue.v1.Worker/Status",
                request_serializer=pb.StatusRequest.SerializeToString,
                response_deserializer=pb.WorkerStatus.FromString,
            )
            return status_from_proto(call(pb.StatusRequest(), timeout=20, wait_for_ready=True))

    def until_running(self, role: str, count: int, limit_s: float = 20) -> None:
        """Waits until the worker of a role has so many requests in its batch."""
        end = time.monotonic() + limit_s
        while (running := self.status(role).running) != count:
            assert time.monotonic() < end, f"{running} requests run at the {role} worker, {count} were to"

    def emptied(self, limit_s: float = 20) -> None:
        """Waits until no worker computes or expects anything, and all their pools are whole."""
        end = time.monotonic() + limit_s
        for role in self.roles:
            while not _whole(status := self.status(role)):
                assert time.monotonic() < end, f"the {role} worker holds something still: {status}"

    def close(self) -> None:
        """Reads what is left of the output of an ended serve."""
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._said:
                self.lines.append(line.rstrip("\n"))
                self._said.notify_all()


@contextmanager
def deployed(*settings: str) -> Iterator[Deployment]:
    """A deployment of the bundled model that is ready; ended afterwards, however the test went."""
    with _deployed(("-m", "deploy.cli", "serve", "--no-ray", "--port", "0"), 60, 20, settings) as deployment:
        deployment.until(lambda: bool(deployment.ready("router")), "the start")
        yield deployment


@contextmanager
def deployed_on_ray(
    *settings: str, command: tuple[str, ...] = ("-m", "deploy.cli", "serve", "--port", "0")
) -> Iterator[Deployment]:
    """The same under Ray, which takes longer to start. `command` is what starts it, instead of `segue serve`."""
    with _deployed(command, 120, 60, settings) as deployment:
        deployment.until(lambda: any("everything is ready" in line for line in deployment.lines), "the start")
        yield deployment


@contextmanager
def _deployed(
    command: tuple[str, ...], patience_s: float, end_s: float, settings: tuple[str, ...]
) -> Iterator[Deployment]:
    flags = [part for setting in (*SMALL, *WATCHFUL, *settings) for part in ("--set", setting)]
    process = subprocess.Popen(
        [sys.executable, *command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"},
    )
    deployment = Deployment(process, patience_s)
    try:
        yield deployment
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(end_s)
        deployment.close()


def actor(deployment: Deployment, name: str) -> int:
    """The process id of one of Ray's actors."""
    (pid,) = [pid for pid in family(deployment.process.pid) if _command(pid).startswith(f"ray::{name}")]
    return pid


def gone(pid: int, limit_s: float = 10) -> None:
    """Waits until a process that is not our child has ended."""
    watch = os.pidfd_open(pid) if _exists(pid) else None
    if watch is None:
        return
    try:
        import select

        poll = select.poll()
        poll.register(watch, select.POLLIN)
        assert poll.poll(limit_s * 1000), f"process {pid} is still there"
    finally:
        os.close(watch)


def _whole(status: WorkerStatus) -> bool:
    return not status.running + status.waiting + status.promised and all(
        pool.free + pool.cached + pool.sink == pool.capacity for pool in status.pools
    )


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
