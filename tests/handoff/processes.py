"""Prefill and decode workers as real processes with the bundled model, which a test may kill, freeze, start again."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from deploy.reports import Ready, decode
from segue.v1 import worker_pb2 as pb
from segue.wire import WorkerStatus, status_from_proto
from tests.support import command_process
from tests.support.forks import Forked

SMALL = (
    "engine.state_bytes=134217728",
    "engine.max_running=8",
    "engine.threads=1",
    "engine.deterministic=true",
    "engine.chunk_tokens=64",
    "worker.silence_s=60",
    "transfer.verify=true",
    "transfer.extend_tokens=0",
    "transfer.heartbeat_s=0.2",
    "transfer.silence_s=4",
    "transfer.settle_s=0.2",
    "transfer.connect_s=3",
    "router.heartbeat_s=0.2",
    "router.heartbeat_timeout_s=2",
)
READY_S = 60


class Process:
    """One started command; its address is known once it is ready."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._ready = threading.Event()
        self.address = ""
        self.errors: list[str] = []
        self._process = self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.ended(0.0)

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def wait_ready(self) -> str:
        """The address that it serves at."""
        assert self._ready.wait(READY_S), f"{self._command} did not become ready:\n" + "\n".join(self.errors)
        return self.address

    def send(self, number: signal.Signals) -> None:
        self._process.signal(number)

    def wake(self) -> None:
        """Lets it go on, if it was frozen."""
        if not self.ended:
            self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once, and waits until it is gone."""
        self.send(signal.SIGKILL)
        self.wait_ended(10)

    def wait_ended(self, timeout_s: float) -> None:
        """Until it has ended by itself."""
        assert self._process.ended(timeout_s), f"{self._command} runs still:\n" + "\n".join(self.errors)

    def status(self) -> WorkerStatus:
        """What the worker says of itself."""
        with grpc.insecure_channel(self.address) as channel:
            call = channel.unary_unary(
                "/segue.v1.Worker/Status",
                request_serializer=pb.StatusRequest.SerializeToString,
                response_deserializer=pb.WorkerStatus.FromString,
            )
            return status_from_proto(call(pb.StatusRequest(), timeout=20, wait_for_ready=True))

    def until(self, seen: Callable[[WorkerStatus], bool], tries: int = 20_000) -> WorkerStatus:
        """Until the worker's status shows it."""
        for _ in range(tries):
            if seen(status := self.status()):
                return status
        raise AssertionError(f"it was not seen: {status}")

    def close(self) -> None:
        self.kill()
        self._process.close()

    def _start(self) -> Forked:
        process = command_process.start(*self._command)
        threading.Thread(target=self._read, args=(os.dup(process.stdout),), daemon=True).start()
        return process

    def _read(self, stdout: int) -> None:
        with os.fdopen(stdout) as lines:
            for line in lines:
                report = decode(line.rstrip("\n"))
                if isinstance(report, Ready):
                    self.address = report.address
                    self._ready.set()
                elif report is None:
                    self.errors.append(line.rstrip("\n"))


def flags(*settings: str) -> list[str]:
    """Small engines, and some settings, as flags of a command."""
    return [part for one in (*SMALL, *settings) for part in ("--set", one)]


class Apart:
    """A prefill and a decode worker, each started again under its old address where a test has killed it."""

    def __init__(self, transport: str) -> None:
        self._transport = f"transfer.transports={transport}"
        self.prefill = self._start("prefill", 0)
        self.decode = self._start("decode", 0)

    def restore(self) -> None:
        """Until both are there."""
        for process in (self.prefill, self.decode):
            if process.address:
                process.wake()
        if self.prefill.ended:
            self.prefill = self._start("prefill", self.prefill.port)
        if self.decode.ended:
            self.decode = self._start("decode", self.decode.port)
        self.prefill.wait_ready()
        self.decode.wait_ready()

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()

    def _start(self, role: str, port: int) -> Process:
        return Process([role, *flags(self._transport, f"worker.port={port}")])


@contextmanager
def apart(transport: str) -> Iterator[Apart]:
    """Workers whose state passes by `transport`."""
    made = Apart(transport)
    try:
        made.restore()
        yield made
    finally:
        made.close()


def whole(status: WorkerStatus) -> bool:
    """Whether nothing runs or waits, and no pool holds, promises or fences anything but for its cache."""
    return not status.running + status.waiting + status.promised and all(
        pool.free + pool.cached + pool.sink == pool.capacity for pool in status.pools
    )


def quarantined(status: WorkerStatus) -> int:
    return sum(pool.quarantined for pool in status.pools)
