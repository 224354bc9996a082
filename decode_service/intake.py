"""State on its way into this worker, on the engine thread: from a sender's ask to the running request; no sockets.

Every request that a sender was called for ends its business with that sender by exactly one `Over`.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from decode_service.commands import Arrived, Asked, Bytes, CheckpointArrived, Fail, Progressed
from kv_transfer.receiver import Incoming, Receiver
from segue.batch.admission import headroom
from segue.batch.news import EngineNews
from segue.batch.request import Request
from segue.engine import Engine
from segue.errors import LeaseExpired, PeerLost, ServingError, TransferFailed, TransferRefused
from segue.handoff import FromReceiver, Part, Renewed, Terms, Ticket
from segue.ids import Handle, WorkerId
from segue.wire import GenerateSpec, Transfers

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Over:
    """The request needs its sender no more. Under `ticket`, unless it is None, the sender may still be writing."""

    ticket: Ticket | None


@dataclass(frozen=True, slots=True)
class CallAgain:
    """The request's state was lost here, and there is room for it again: its sender is to be asked for `spec`.

    What it says is said in the name of `call`.
    """

    spec: GenerateSpec
    call: int


@dataclass(frozen=True, slots=True)
class Reply:
    """For the call of one request to its sender."""

    handle: Handle
    message: FromReceiver | Over | CallAgain


@dataclass(slots=True)
class _Coming:
    attempt: int
    call: int
    pending: int | None = None
    """The token that the state comes with, where it is known: it was put out before the request moved here."""
    asked: Asked | None = None
    incoming: Incoming | None = None
    called_at: float = 0.0
    asked_at: float = 0.0
    granted_at: float = 0.0
    state_here: bool = False
    """The request runs; only its prompt checkpoint is still to come."""


class Intake:
    """Everything that is expected here. `take_replies` gives what there is to tell the senders."""

    def __init__(self, engine: Engine, receiver: Receiver, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._receiver = receiver
        self._reservations = receiver.reservations
        self._clock = clock
        self._coming: dict[Handle, _Coming] = {}
        self._by_ticket: dict[Ticket, Handle] = {}
        self._replies: list[Reply] = []
        self._recalls = 0
        self.figures = Transfers()

    # What the outside says

    def expect(self, handle: Handle, attempt: int, call: int = 0, pending: int | None = None) -> None:
        """A sender is called for the request, whose next token, if it is known, is `pending`."""
        self._coming[handle] = _Coming(attempt, call, pending, called_at=self._clock())

    def asked(self, command: Asked) -> None:
        """The sender's turn is near: the request stands in line from now on."""
        coming = self._find(command)
        if coming is None or coming.asked is not None:
            return
        coming.asked, coming.asked_at = command, self._clock()
        self._engine.ask(command.handle, command.attempt)

    def progressed(self, command: Progressed) -> None:
        """A sign of life renews the lease, and the sender is told so."""
        progress = command.progress
        if self._reservations.progress(progress.ticket):
            self._replies.append(Reply(command.handle, Renewed(progress.ticket, progress.sequence)))

    def put(self, command: Bytes) -> None:
        """Writes bytes that came as a message."""
        try:
            self._receiver.put(command.message)
        except ServingError as error:
            command.written.set_exception(error)
        else:
            command.written.set_result(None)

    def arrived(self, command: Arrived) -> EngineNews | None:
        """The sender is done. News of the request's first token, None when that is no news or cannot be used."""
        coming, finished = self._find(command), command.finished
        if coming is None or coming.state_here:
            return None
        try:
            if coming.pending is not None and (finished.ticket is None or finished.token.token_id != coming.pending):
                raise TransferFailed(
                    f"request of handle {command.handle}: its state comes with token {finished.token.token_id}, where "
                    f"token {coming.pending} had been put out"
                )
            if finished.ticket is None:
                news = self._engine.receive_last(
                    command.handle, command.attempt, finished.token, finished.usage.cached_tokens
                )
                if news is None:
                    raise TransferFailed(
                        f"request of handle {command.handle}: its sender says that token {finished.token.token_id} "
                        "ends it, which it does not by the rules here"
                    )
                self.ended(command.handle)
                return news
            incoming = coming.incoming
            if incoming is None or incoming.grant.ticket != finished.ticket:
                return None
            rows = self._receiver.accept(incoming, Part.STATE, finished.digests)
        except ServingError as error:
            self._fail(command.handle, command.attempt, error)
            return None
        if rows is None:
            return None
        self._count(coming, incoming, finished.usage.cached_tokens)
        expected = incoming.grant.terms.checkpoint if incoming.plan.checkpoint() else None
        news = self._engine.receive(
            command.handle, command.attempt, rows, finished.token, finished.usage.cached_tokens, expected
        )
        if expected is None:
            self._over(command.handle, None)
        else:
            coming.state_here = True
        return news

    def checkpoint_arrived(self, command: CheckpointArrived) -> None:
        """The prompt checkpoint is complete, too. One that cannot be used is given up; the request goes on."""
        coming, pushed = self._find(command), command.pushed
        if coming is None or not coming.state_here or (incoming := coming.incoming) is None:
            return
        if incoming.grant.ticket != pushed.ticket or pushed.depth != incoming.grant.terms.checkpoint:
            return
        try:
            rows = self._receiver.accept(incoming, Part.CHECKPOINT, pushed.digests)
        except ServingError as error:
            log.warning("%s: its prompt checkpoint is of no use: %s", pushed.ticket, error.message)
            self._give_up(command.handle)
            return
        if rows is not None:
            self._engine.receive_checkpoint(command.handle, rows)
            self._over(command.handle, None)

    def failed(self, command: Fail) -> None:
        """The call to the sender broke. A request whose state has arrived does not need it any more."""
        if (coming := self._find(command)) is None:
            return
        if coming.state_here:
            self._give_up(command.handle)
        else:
            self._fail(command.handle, command.attempt, command.error)

    def settled(self, ticket: Ticket) -> None:
        """Nothing more is written under the ticket. A request that still waited for it has lost it."""
        if self._reservations.settled(ticket) and (handle := self._by_ticket.get(ticket)) is not None:
            self._lost(handle, TransferFailed(f"{ticket}: its sender ended it before the state was complete"))

    def peer_died(self, peer: WorkerId) -> None:
        """A sender's process is gone; what it could still write is free now."""
        for ticket, _ in self._reservations.proven_dead(peer):
            if (handle := self._by_ticket.get(ticket)) is not None:
                self._lost(handle, PeerLost(f"{ticket}: its sender {peer} died"))

    # What the engine says

    def grant_promised(self) -> bool:
        """Sets units aside for every request that the engine has promised room since the last call.

        False when one did not get any: then there is room again, or somebody to be computed here.
        """
        granted = True
        for request in self._engine.take_promised():
            coming = self._coming[request.handle]
            try:
                self._grant(request, coming)
            except TransferRefused as error:
                # Refused by this pair of workers; another sender may do.
                self._fail(request.handle, request.attempt, TransferFailed(error.message))
                granted = False
            except ServingError as error:
                # A sender that has died since it asked, or room that is not there after all.
                self._fail(request.handle, request.attempt, error)
                granted = False
        return granted

    def call_again(self) -> None:
        """Has the senders called of all requests whose state was lost and that have room again."""
        for request, spec in self._engine.take_recalled():
            self._engine.costs.count_recalled(request)
            self._recalls += 1
            self.expect(request.handle, request.attempt, self._recalls)
            self._replies.append(Reply(request.handle, CallAgain(spec, self._recalls)))

    def ended(self, handle: Handle) -> None:
        """A request has ended in the engine, for whatever reason. What its sender may still write is quarantined."""
        coming = self._coming.get(handle)
        # A prompt checkpoint serves others, too.
        if coming is not None and not coming.state_here:
            self._withdraw(handle)

    def is_coming(self, handle: Handle) -> bool:
        """Whether units are set aside for the request, which its sender may be filling."""
        coming = self._coming.get(handle)
        return coming is not None and coming.incoming is not None

    def expire(self) -> None:
        """Fails requests whose senders let the lease run out."""
        for ticket in self._reservations.expire():
            handle = self._by_ticket[ticket]
            error = LeaseExpired(f"{ticket}: no sign of life from its sender for {self._reservations.lease_s:g} s")
            self._lost(handle, error)

    def stuck_for_s(self, share: float) -> float:
        """For how long more than `share` of some pool may have been in quarantine; 0 when it is less."""
        age_s = self._reservations.quarantine_age_s()
        if not age_s or all(pool.quarantined <= share * pool.capacity for pool in self._engine.status().pools):
            return 0.0
        return age_s

    def take_replies(self) -> list[Reply]:
        replies, self._replies = self._replies, []
        return replies

    def next_expiry(self) -> float | None:
        """When `expire` has something to do next, on the monotonic clock."""
        return self._reservations.next_expiry()

    def check(self) -> None:
        """Asserts that exactly what is promised is set aside."""
        self._reservations.check()

    def _grant(self, request: Request, coming: _Coming) -> None:
        asked = coming.asked
        assert asked is not None, f"request {request.request_id} was promised room that nobody asked for"
        if asked.ask.prompt_tokens != request.known_len:
            raise TransferRefused(
                f"request {request.request_id} has {request.known_len} tokens, its sender asks for "
                f"{asked.ask.prompt_tokens}"
            )
        held = self._engine.holdings.hold(request)
        checkpoint = self._engine.holdings.wanted_checkpoint(request, asked.ask.checkpoint)
        coming.incoming = self._receiver.grant(
            asked.peer,
            asked.tp_size,
            request.request_id,
            request.attempt,
            asked.ask.number,
            Terms(request.known_len, held, checkpoint),
            headroom_tokens=headroom(request),
        )
        coming.granted_at = self._clock()
        self._by_ticket[coming.incoming.grant.ticket] = request.handle
        self._replies.append(Reply(request.handle, coming.incoming.grant))

    def _count(self, coming: _Coming, incoming: Incoming, reused: int) -> None:
        seconds = max(1e-9, self._clock() - coming.granted_at)
        # Between question and promise it waited for room here, which it would have done in any case.
        queued_s = coming.asked_at - coming.called_at
        moved = coming.pending is not None
        if not moved:
            self._engine.costs.handed_over(queued_s + seconds, incoming.grant.terms.prompt_tokens, reused)
        runs = incoming.plan.runs
        size = sum(
            (piece.stop - piece.first) * sum(run.bytes for run in runs[piece.component])
            for piece in incoming.plan.state()
        )
        figures = self.figures
        self.figures = Transfers(
            figures.count + 1,
            figures.latency_s + seconds,
            figures.bytes + size,
            figures.speed_gb_s + size / seconds / 1e9,
            figures.moved_in + moved,
        )

    def _find(self, command: Asked | Arrived | CheckpointArrived | Fail) -> _Coming | None:
        coming = self._coming.get(command.handle)
        if coming is None or (coming.attempt, coming.call) != (command.attempt, command.call):
            return None
        return coming

    def _lost(self, handle: Handle, error: ServingError) -> None:
        """What is still to come for a request will not."""
        coming = self._coming[handle]
        if coming.state_here:
            self._give_up(handle)
        else:
            self._fail(handle, coming.attempt, error)

    def _fail(self, handle: Handle, attempt: int, error: ServingError) -> None:
        """The state will not come. A request that ran here before goes on without its sender, any other one ends."""
        if not self._engine.fall_back(handle, attempt):
            self._engine.fail(handle, attempt, error)
            return
        log.warning("request of handle %d is computed here again: %s", handle, error.message)
        self._withdraw(handle)

    def _give_up(self, handle: Handle) -> None:
        """The prompt checkpoint will not come, or is of no use."""
        self._engine.give_up_checkpoint(handle)
        self._withdraw(handle)

    def _withdraw(self, handle: Handle) -> None:
        """Ends the promise. What the sender may still write is quarantined until it says that it does not."""
        incoming = self._coming[handle].incoming
        ticket = incoming.grant.ticket if incoming is not None else None
        awaited = ticket is not None and self._reservations.cancel(ticket)
        self._over(handle, ticket if awaited else None)

    def _over(self, handle: Handle, ticket: Ticket | None) -> None:
        """The request's business with its sender is over, but for what may still be written under `ticket`."""
        coming = self._coming.pop(handle)
        if coming.incoming is not None:
            del self._by_ticket[coming.incoming.grant.ticket]
        self._replies.append(Reply(handle, Over(ticket)))
