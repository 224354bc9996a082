"""The sender's side of one handoff call: asks, takes the grant, pushes, and tells the receiver what has settled."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from kv_transfer.arena_map import side_of_peer
from kv_transfer.desk import Desk
from kv_transfer.outbox import Outbox
from kv_transfer.plan import Side, make_plan
from kv_transfer.sender import Outgoing
from kv_transfer.sending import Answer, PartDone, SendingEvent, TicketFailed, TicketSettled
from kv_transfer.transport import Link
from segue.errors import ServingError, TransferRefused
from segue.handoff import (
    Ask,
    CheckpointPushed,
    Finished,
    FromReceiver,
    Grant,
    HandoffFailed,
    Part,
    Progress,
    Renewed,
    Settled,
    Ticket,
    UnitRow,
    Withdraw,
)
from segue.peering import ArenaMap, Introduction


class Handover:
    """One request. Owned by the event loop of its desk.

    `granted` ends with what to push by, or with why there is nothing to push. `settled` ends when the pages that it
    sends from may be used for something else: from then on nothing reads them.
    """

    def __init__(
        self, desk: Desk, outbox: Outbox, link: Link, *, ours: ArenaMap, side: Side, peer: Introduction
    ) -> None:
        self._desk = desk
        self._outbox = outbox
        self._link = link
        self._ours = ours
        self._side = side
        self._peer = peer
        self._ask: int | None = None
        self._ticket: Ticket | None = None
        self._outgoing: Outgoing | None = None
        self._endings: dict[Part, Finished | CheckpointPushed] = {}
        loop = asyncio.get_running_loop()
        self.granted: asyncio.Future[Outgoing] = loop.create_future()
        self.settled: asyncio.Future[None] = loop.create_future()
        self.error: ServingError | None = None

    def ask(self, prompt_tokens: int, checkpoint: int | None) -> None:
        """Asks the receiver for units; the grant, if it comes, comes through `take`."""
        assert self._ask is None, "one ask a handover"
        self._ask = self._desk.sending.ask()
        self._outbox.put(Ask(self._ask, prompt_tokens, checkpoint))

    def take(self, message: FromReceiver) -> None:
        """A message of the receiver. Late, repeated and foreign ones change nothing."""
        match message:
            case Grant():
                self._grant(message)
            case Renewed():
                self._desk.sending.renewed(message.ticket, message.sequence)
            case Withdraw():
                self._desk.register(message.ticket, self)
                self._desk.sending.withdrawn(message.ticket)
        self._desk.pump()

    def push(self, computed: int, now: int, rows: Sequence[UnitRow]) -> None:
        """A chunk is complete in memory: positions [computed, now), whose pages stand in `rows`."""
        outgoing = self._granted()
        pieces = outgoing.plan.chunk(computed, now)
        self._desk.sending.push(outgoing.ticket, Part.STATE, outgoing.pushes(pieces, rows))
        self.progress(now)

    def progress(self, computed: int) -> None:
        """A sign of life, which renews the lease at both ends."""
        ticket = self._granted().ticket
        if (sequence := self._desk.sending.progress(ticket)) is not None:
            self._outbox.put(Progress(ticket, sequence, computed))
        self._desk.pump()

    def finish(self, finished: Finished) -> None:
        """The last chunk was pushed: `finished` goes out, with the ticket, once all of the state has settled."""
        ticket = self._granted().ticket
        self._end(ticket, Part.STATE, replace(finished, ticket=ticket))

    def push_checkpoint(self, rows: Sequence[UnitRow], pushed: Callable[[Ticket], CheckpointPushed]) -> None:
        """Sends what the plan has beside the state, and then the message that says so."""
        outgoing = self._granted()
        pieces = outgoing.plan.checkpoint()
        self._desk.sending.push(outgoing.ticket, Part.CHECKPOINT, outgoing.pushes(pieces, rows))
        self._end(outgoing.ticket, Part.CHECKPOINT, pushed(outgoing.ticket))

    def skip_checkpoint(self) -> None:
        """The plan has a prompt checkpoint, but there is none to send."""
        self._desk.sending.skip(self._granted().ticket, Part.CHECKPOINT)
        self._desk.pump()

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the receiver awaits a prompt checkpoint after the state."""
        return bool(self._granted().plan.checkpoint())

    def abandon(self, error: ServingError) -> None:
        """The request failed or was cancelled here, or its call has ended. Nothing more is posted."""
        if self._ticket is not None:
            self._desk.sending.abandon(self._ticket, error)
        else:
            if self._ask is not None:
                self._desk.sending.forget(self._ask)
            self._fail(error)
            self._settle()
        self._desk.pump()

    def on_event(self, event: SendingEvent) -> None:
        match event:
            case PartDone():
                self._outbox.put(self._endings[event.part])
            case TicketFailed():
                self._fail(event.error)
            case TicketSettled():
                self._outbox.put(Settled(event.ticket))
                # The answer to a grant that was not taken says nothing of this handover's own pages.
                if self._ticket == event.ticket:
                    self._settle()

    def _grant(self, grant: Grant) -> None:
        sending = self._desk.sending
        self._desk.register(grant.ticket, self)
        if (
            sending.granted(grant.ticket, grant.ask, grant.lease_s, {row.part for row in grant.rows})
            is not Answer.TAKEN
        ):
            return
        self._ticket = grant.ticket
        try:
            plan = make_plan(grant.terms, self._side, side_of_peer(self._side, self._peer.tp_size))
            self._outgoing = Outgoing(grant, plan, self._link, self._ours, self._peer.arena)
        except TransferRefused as error:
            sending.abandon(grant.ticket, error)
            return
        if not self.granted.done():
            self.granted.set_result(self._outgoing)

    def _end(self, ticket: Ticket, part: Part, message: Finished | CheckpointPushed) -> None:
        self._endings[part] = message
        self._desk.sending.end(ticket, part)
        self._desk.pump()

    def _fail(self, error: ServingError) -> None:
        self.error = self.error or error
        self._outbox.put(HandoffFailed(error))
        if not self.granted.done():
            self.granted.set_exception(error)

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def _granted(self) -> Outgoing:
        assert self._outgoing is not None, "nothing was granted"
        return self._outgoing
