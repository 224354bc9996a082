"""The life of a worker process: load, serve until it is told to end, and the exit code that says how it went."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from kv_transfer.hosting.exits import EXIT_BROKEN, EXIT_OK
from kv_transfer.hosting.loading import Loaded


class Host(Protocol):
    """A worker of any kind on its port."""

    @property
    def address(self) -> str:
        """Where it listens, host:port."""

    @property
    def broken(self) -> "asyncio.Future[BaseException]":
        """Ends with what broke the worker, if anything ever does."""

    async def start(self, build: Callable[[], Loaded]) -> None:
        """Builds the engine and takes connections. Raises what building it raised; may be cancelled."""

    async def stop(self) -> None:
        """Finishes what runs within the drain budget, and closes the port."""


async def run_host(make: Callable[[], Host], build: Callable[[], Loaded], ready: Callable[[str], None]) -> int:
    """Serves until SIGTERM or SIGINT, or until the worker breaks; `ready` is told the bound address.

    Raises what building the engine raised, and what `make` does when the port cannot be bound.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host = make()
    starting = asyncio.create_task(host.start(build))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        # The engine thread is a daemon and ends with the process; nobody was promised anything yet.
        starting.cancel()
        return EXIT_OK
    await starting
    ready(host.address)
    ends: set[asyncio.Future[Any]] = {stopping, host.broken}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    await host.stop()
    stopping.cancel()
    return EXIT_BROKEN if host.broken.done() else EXIT_OK


def end_process(code: int) -> NoReturn:
    """Ends the process without waiting for the engine thread."""
    logging.shutdown()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)
