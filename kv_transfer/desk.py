"""Everything that this worker sends to one peer: one policy and one pump for all its handovers."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from kv_transfer.sender import Push, Sender
from kv_transfer.sending import Sending, SendingEvent, TicketSettled
from segue.errors import ServingError
from segue.handoff import Ticket


class TicketOwner(Protocol):
    """Told what happens to a ticket that it registered."""

    def on_event(self, event: SendingEvent) -> None: ...


class Desk:
    """Owned by one event loop; transports wake it from their own threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], *, in_flight_max: int = 4) -> None:
        self._loop = loop
        self._sender = Sender(Sending(clock, in_flight_max=in_flight_max), self._wake)
        self._owners: dict[Ticket, TicketOwner] = {}
        self._waiters: dict[Ticket, list[asyncio.Future[None]]] = {}

    @property
    def sending(self) -> Sending[Push]:
        """The policy; whoever changes it calls `pump` afterwards."""
        return self._sender.sending

    def register(self, ticket: Ticket, owner: TicketOwner) -> None:
        """`owner` hears of the ticket until it has settled."""
        self._owners[ticket] = owner

    def pump(self) -> None:
        """Posts what may be posted and passes on what happened; also to be called now and then, for leases."""
        for event in self._sender.pump():
            owner = self._owners.get(event.ticket)
            if isinstance(event, TicketSettled):
                self._owners.pop(event.ticket, None)
                for waiter in self._waiters.pop(event.ticket, ()):
                    if not waiter.done():
                        waiter.set_result(None)
            if owner is not None:
                owner.on_event(event)

    async def settle(self, ticket: Ticket) -> None:
        """Withdraws a ticket on behalf of its receiver; returns once nothing is, or ever will be, written under it."""
        waiter = self._loop.create_future()
        self._waiters.setdefault(ticket, []).append(waiter)
        self.sending.withdrawn(ticket)
        self.pump()
        await waiter

    def lost(self, error: ServingError) -> None:
        """The peer is gone."""
        self.sending.lost(error)
        self.pump()

    def _wake(self) -> None:
        # After the loop has closed there is nobody left to tell.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.pump)
