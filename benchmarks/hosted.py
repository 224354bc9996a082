"""Workers in this process, each with its engine thread and port: one that does everything, or prefill and decode."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from decode_service.host import Host
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from kv_transfer.hosting.loading import load
from kv_transfer.hosting.neighbours import Neighbours
from prefill_service.host import PrefillHost
from segue.batch.role import Role
from segue.batch.suffix_costs import Rule
from segue.config import EngineConfig

# Engines that compute share one interpreter here: nobody is dead because it is slow to answer.
SILENCE_S = 600.0
END_S = 60.0


@dataclass(frozen=True, slots=True)
class Hosted:
    """Where requests go: `prefill` is empty where one worker does everything."""

    address: str
    prefill: str = ""


@asynccontextmanager
async def hosted(engine: EngineConfig, *, separated: bool, extend_tokens: int = 0) -> AsyncIterator[Hosted]:
    """Workers as `engine` says, but for its role; state passes from arena to arena."""
    worker = WorkerConfig(silence_s=SILENCE_S, session_grace_s=SILENCE_S, drain_s=1.0)
    # What is reused must not depend on how fast this machine is.
    by = Rule.THRESHOLD.value
    transfer = TransferConfig(
        transports="local", silence_s=SILENCE_S, lease_s=SILENCE_S, extend_tokens=extend_tokens, extend_by=by
    )
    neighbours = Neighbours()
    decode = Host(worker, transfer, neighbours)
    prefill = PrefillHost(worker, transfer, neighbours) if separated else None
    roles: list[tuple[Role, Host | PrefillHost]] = [(Role.DECODE if separated else Role.BOTH, decode)]
    if prefill is not None:
        roles.append((Role.PREFILL, prefill))
    started: list[Host | PrefillHost] = []
    try:
        for role, host in roles:
            own = dataclasses.replace(engine, role=role.value)
            await host.start(partial(load, own, lambda _: None, lambda _: None))
            started.append(host)
        yield Hosted(decode.address, "" if prefill is None else prefill.address)
    finally:
        await asyncio.gather(*(host.stop() for host in started))
        # Daemons, which a process that ends normally must not cut off within a tensor library.
        for thread in threading.enumerate():
            if thread.name == "engine":
                await asyncio.to_thread(thread.join, END_S)
