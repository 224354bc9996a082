"""`segue status`: what a router says of its workers, and what each says of itself, as a table; needs no Ray."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from segue.errors import ServingError, WorkerUnavailable
from segue.wire import PoolStatus, WorkerStatus
from segue.wire.channel import TlsConfig
from segue.wire.client import WorkerClient

_ASK_S = 5.0
_HEAD = (
    "role",
    "worker",
    "address",
    "state",
    "ranks",
    "load",
    "running",
    "waiting",
    "reused",
    "retracted",
    "pools (used + cached / all)",
)


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as its router sees it; `status` is its own word, or the reason why it gives none."""

    role: str
    worker_id: str
    address: str
    state: str
    load: int
    status: WorkerStatus | ServingError


async def ask(url: str, tls: TlsConfig) -> list[WorkerRow]:
    """All workers of the router at `url`, which are called as `tls` says.

    Raises WorkerUnavailable when there is no router, ConfigError for a file of `tls` that cannot be read.
    """
    try:
        async with httpx.AsyncClient(base_url=url, timeout=_ASK_S) as http:
            listed = (await http.get("/workers")).raise_for_status().json()["workers"]
    except httpx.HTTPError as error:
        raise WorkerUnavailable(f"{url} does not answer ({error}); is `segue serve` up?") from error
    statuses = await asyncio.gather(*(_status(str(one["address"]), tls) for one in listed))
    return [
        WorkerRow(
            role=one["role"] or "?",
            worker_id=one["worker_id"] or "?",
            address=one["address"],
            state=one["state"],
            load=one["load"],
            status=status,
        )
        for one, status in zip(listed, statuses, strict=True)
    ]


def table(rows: Sequence[WorkerRow]) -> str:
    """The rows under a head, in columns; below them the workers that say nothing of themselves, and why."""
    lines = [_HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEAD))]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    silent = [(row.address, row.status.message) for row in rows if isinstance(row.status, ServingError)]
    if silent:
        shown += ["", *(f"{address} says nothing of itself: {reason}" for address, reason in silent)]
        shown += ["(where workers show certificates, so must you: --config FILE, or --set tls....)"]
    return "\n".join(shown)


def _cells(row: WorkerRow) -> tuple[str, ...]:
    status = row.status
    ranks, own = "?", ("?", "?", "?", "?", "?")
    if not isinstance(status, ServingError):
        pools = ", ".join(_pool(pool) for pool in status.pools)
        ranks = str(status.tp_size)
        own = (str(status.running), str(status.waiting), _reused(status.cache.hit_share), _retracted(status), pools)
    return (row.role, row.worker_id, row.address, row.state, ranks, str(row.load), *own)


def _reused(share: float | None) -> str:
    """Of the tokens of requests that started at the worker."""
    return "-" if share is None else f"{share:.0%}"


def _retracted(status: WorkerStatus) -> str:
    """Requests off the device now, of all that were taken off it."""
    return f"{status.retraction.waiting} / {status.retraction.retractions}"


def _pool(pool: PoolStatus) -> str:
    """Sinks hold nothing of anybody; what is cached gives way where room is needed."""
    used = pool.held + pool.reserved + pool.quarantined
    return f"{pool.component} {used} + {pool.cached} / {pool.capacity - pool.sink}"


async def _status(address: str, tls: TlsConfig) -> WorkerStatus | ServingError:
    client = WorkerClient(address, tls)
    try:
        return await client.status(_ASK_S)
    except ServingError as error:
        return error
    finally:
        await client.close()
