"""Asks a kept process for a sign of life over its own port; knows nothing of what is done to one that gives none."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import httpx

from segue.errors import ServingError
from segue.wire.channel import TlsConfig
from segue.wire.client import WorkerClient


class Health(Protocol):
    """The health of one process, at the address that it was started with."""

    async def answers(self, timeout_s: float) -> bool:
        """Whether it answers by then."""

    async def aclose(self) -> None:
        """Ends the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """`open` gives the health of a process at an address, which is asked every `every_s`.

    A process that answers nothing for `timeout_s` is past help.
    """

    open: Callable[[str], Health]
    every_s: float
    timeout_s: float


class WorkerHealth:
    """A worker answers between two steps of its engine: one that hangs is as silent as a frozen process."""

    def __init__(self, address: str, tls: TlsConfig) -> None:
        """`address` is host:port."""
        self._client = WorkerClient(address, tls)

    async def answers(self, timeout_s: float) -> bool:
        try:
            await self._client.status(timeout_s)
        except ServingError:
            return False
        return True

    async def aclose(self) -> None:
        await self._client.close()


class RouterHealth:
    """A router answers as long as its event loop turns."""

    def __init__(self, address: str) -> None:
        """`address` is its URL."""
        # On this machine and in the clear: no proxy is on the way, and no authorities need be read.
        self._http = httpx.AsyncClient(base_url=address, trust_env=False, verify=False)

    async def answers(self, timeout_s: float) -> bool:
        try:
            return (await self._http.get("/liveness", timeout=timeout_s)).is_success
        except httpx.TransportError:
            return False

    async def aclose(self) -> None:
        await self._http.aclose()


async def until_silent(health: Health, policy: HealthPolicy) -> None:
    """Returns when a process has answered nothing for too long."""
    loop = asyncio.get_running_loop()
    answered_at = loop.time()
    while (left_s := answered_at + policy.timeout_s - loop.time()) > 0:
        if await health.answers(left_s):
            await asyncio.sleep(policy.every_s)
            # Nobody asked meanwhile: silence counts from the next question on.
            answered_at = loop.time()
        else:
            await asyncio.sleep(min(policy.every_s, left_s))
