"""Waits for senders that have not said whether they still write: asks them again and again, until they answer or die.

A sender whose bytes come as messages of its call, or from this very process, cannot write once the call has ended. One
that does not answer may be dead without our seeing it: then those are asked that can.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from decode_service.commands import SettledTicket
from kv_transfer.hosting.exchange import Exchange, Way
from segue.errors import ServingError
from segue.handoff import Ticket, TransportName
from segue.ids import WorkerId

log = logging.getLogger(__name__)


class Fences:
    """Owned by the event loop. `settled` is told of every ticket that nobody can write under any more."""

    def __init__(self, exchange: Exchange, settled: Callable[[SettledTicket], None], *, retry_s: float) -> None:
        self._exchange = exchange
        self._settled = settled
        self._retry_s = retry_s
        self._waiting: dict[WorkerId, set[asyncio.Event]] = {}
        # Worker ids name one start of one process, so the dead stay dead.
        self._dead: set[WorkerId] = set()

    async def close(self, way: Way, ticket: Ticket) -> None:
        """Returns when nothing can be written under the ticket. Its call has ended, or is cancelled right after."""
        peer = way.peer.introduction.worker_id
        if way.transport is not TransportName.NIXL:
            self._settled(SettledTicket(ticket))
            return
        if peer in self._dead:
            return
        log.warning("%s: waiting until %s has stopped writing", ticket, peer)
        died = asyncio.Event()
        waiting = self._waiting.setdefault(peer, set())
        waiting.add(died)
        inquiry: asyncio.Task[None] | None = None
        try:
            while not died.is_set():
                try:
                    await self._exchange.settle(way, ticket)
                except ServingError as error:
                    log.info("%s: %s", ticket, error.message)
                else:
                    self._settled(SettledTicket(ticket))
                    return
                # It goes on beside the next round: an answer that comes late is as good.
                if inquiry is None or inquiry.done():
                    if inquiry is not None:
                        inquiry.result()
                    inquiry = asyncio.create_task(self._exchange.inquire(way))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._retry_s):
                        await died.wait()
        finally:
            waiting.discard(died)
            if inquiry is not None:
                inquiry.cancel()

    def peer_died(self, peer: WorkerId) -> None:
        """The peer's process is gone, and every wait for it over, now and later."""
        self._dead.add(peer)
        for died in self._waiting.pop(peer, set()):
            died.set()
