"""Prefill, decode and router as processes started by hand, for measurements of prefill and decode apart."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO

import httpx

from benchmarks.refusal import Refused
from deploy.reports import Ready, decode

READY_S = 30.0
PATIENT = (
    "transfer.silence_s=60",
    "worker.silence_s=60",
    "router.heartbeat_timeout_s=60",
    "router.request_timeout_s=3600",
    "router.queue_timeout_s=3600",
)
"""Settings for runs that crowd the machine: nobody is dead because it is slow to answer."""


@contextmanager
def separated(transport: str, settings: Sequence[str], decode: Sequence[str] = ()) -> Iterator[str]:
    """The base address of a router before one prefill and one decode worker, whose state passes by `transport`.

    `settings` are assignments for every process, `decode` for one. Raises Refused when one does not become ready.
    """
    common = [*settings, f"transfer.transports={transport}"]
    with ExitStack() as stack:

        def start(*command: str, own: Sequence[str] = ()) -> list[str]:
            return stack.enter_context(started(command, [*common, *own]))

        if transport == "local":
            assert not decode, "both workers of one process have the same settings"
            prefill, worker = start("-m", "benchmarks.local_pair")
        else:
            (prefill,) = start("-m", "deploy.cli", "prefill")
            (worker,) = start("-m", "deploy.cli", "decode", own=decode)
        (url,) = start("-m", "deploy.cli", "router", "--port", "0", "--prefill", prefill, "--decode", worker)
        await_readiness(url)
        yield url


@contextmanager
def together(settings: Sequence[str]) -> Iterator[str]:
    """The base address of a router before one worker that does everything, in processes like those of `separated`."""
    with (
        started(("-m", "deploy.cli", "worker"), settings) as (worker,),
        started(("-m", "deploy.cli", "router", "--port", "0", "--worker", worker), settings) as (url,),
    ):
        await_readiness(url)
        yield url


def check_handoffs(url: str) -> None:
    """Raises Refused unless state was handed over: answers of one worker would look the same."""
    page = httpx.get(f"{url}/metrics").raise_for_status().text
    counts = [line for line in page.splitlines() if line.startswith("sglang:kv_transfer_latency_ms_count")]
    if not any(float(line.rsplit(" ", 1)[1]) > 0 for line in counts):
        raise Refused("no state was handed over")


def await_readiness(url: str) -> None:
    """Returns once the router has met its workers."""
    deadline_s = time.monotonic() + READY_S
    while httpx.get(f"{url}/readiness", timeout=2.0).status_code != 200:
        if time.monotonic() > deadline_s:
            raise Refused(f"the router did not find its workers ready within {READY_S:.0f} s")
        time.sleep(0.1)


@contextmanager
def started(command: Sequence[str], settings: Sequence[str]) -> Iterator[list[str]]:
    """The addresses at which a started process says that it serves, which lives as long as the block."""
    with running(command, settings) as (_, addresses):
        yield addresses


@contextmanager
def running(command: Sequence[str], settings: Sequence[str]) -> "Iterator[tuple[subprocess.Popen[str], list[str]]]":
    """The same, and the process itself."""
    flags = [part for setting in settings for part in ("--set", setting)]
    tied = ["--tied-to", str(os.getpid())]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, *command, *flags, *tied], stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield process, _ready(process, 2 if "benchmarks.local_pair" in command else 1, errors)
        except Refused:
            errors.seek(0)
            print(errors.read()[-2000:], file=sys.stderr)
            raise
        finally:
            if process.poll() is not None:
                errors.seek(0)
                print(f"{' '.join(command)} ended with {process.returncode}:\n{errors.read()[-4000:]}", file=sys.stderr)
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _ready(process: "subprocess.Popen[str]", count: int, errors: IO[str]) -> list[str]:
    assert process.stdout is not None
    addresses: list[str] = []
    for line in process.stdout:
        if isinstance(report := decode(line.rstrip("\n")), Ready):
            addresses.append(report.address)
        if len(addresses) == count:
            return addresses
    errors.seek(0)
    raise Refused(f"a process ended with {process.wait()} before it was ready:\n{errors.read()[-2000:]}")
