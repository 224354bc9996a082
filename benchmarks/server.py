"""The server under measurement: one that runs already, or one started for the run on a free port and ended after it.

What is started has one worker in role both; for prefill and decode apart there is `benchmarks.separated`.
"""

import argparse
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import httpx

from benchmarks.refusal import Refused

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 20.0
POLL_S = 0.1
SHOWN_LINES = 15


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that choose the server: a running one by `--url`, else how to start one."""
    parser.add_argument("--url", help="measure the server at this address instead of starting one")
    parser.add_argument("--model", help="model folder to serve (default: the bundled model)")
    parser.add_argument("--deterministic", action="store_true", help="serve in deterministic mode")


@contextmanager
def serving(args: argparse.Namespace) -> Iterator[str]:
    """The base address of a ready server. Raises Refused when it does not become ready."""
    if args.url:
        yield args.url.rstrip("/")
        return
    port = _free_port()
    command = [str(Path(sys.executable).parent / "segue"), "serve", "--no-ray", "--both", "1"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    command += ["--model", args.model] if args.model else []
    command += ["--deterministic", "true"] if args.deterministic else []
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait_until_ready(process, url, output)
            yield url
        finally:
            _stop(process)


def model_name(url: str) -> str:
    """The name under which the server serves its model."""
    return str(httpx.get(f"{url}/v1/models").raise_for_status().json()["data"][0]["id"])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, output: IO[bytes]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            raise Refused(f"the server ended with {process.returncode} before it was ready:\n{_last_lines(output)}")
        try:
            if httpx.get(f"{url}/readiness", timeout=2.0).status_code == 200:
                return
        except httpx.TransportError:
            pass  # nothing listens yet
        time.sleep(POLL_S)
    raise Refused(f"the server was not ready within {START_TIMEOUT_S:.0f} s:\n{_last_lines(output)}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_lines(output: IO[bytes]) -> str:
    output.seek(0)
    return "\n".join(output.read().decode(errors="replace").splitlines()[-SHOWN_LINES:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
