"""What a sender may write to one peer, and when it must not any more; pure policy that sees neither bytes nor sockets.

A ticket is open from its grant until every write of it has settled. It closes early when the peer withdraws it, its
lease runs out, or a write fails; what was posted by then still settles, and only then is the peer told `Settled`. From
that moment nothing is ever written under the ticket: a grant that comes late is declined.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Generic, TypeVar

from segue.errors import LeaseExpired, ServingError, TransferFailed
from segue.handoff import Part, Ticket
from segue.ids import ReservationId

P = TypeVar("P")


class Answer(Enum):
    """What became of a grant."""

    TAKEN = auto()
    KNOWN = auto()
    DECLINED = auto()


@dataclass(frozen=True, slots=True)
class Post(Generic[P]):
    """One write to be posted now; `number` comes back when it has settled."""

    number: int
    ticket: Ticket
    part: Part
    payload: P


@dataclass(frozen=True, slots=True)
class PartDone:
    """Every write of the part has settled: tell the peer that it is complete."""

    ticket: Ticket
    part: Part


@dataclass(frozen=True, slots=True)
class TicketSettled:
    """Nothing is written under the ticket, and nothing ever will be: tell the peer."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class TicketFailed:
    """The ticket closed before its parts were complete; its request cannot be handed over."""

    ticket: Ticket
    error: ServingError


SendingEvent = PartDone | TicketSettled | TicketFailed


@dataclass(slots=True)
class _Open:
    """A granted ticket. `waiting` counts pushes that are not posted yet, `posted` writes that have not settled."""

    ticket: Ticket
    lease_s: float
    lease_until: float
    parts: set[Part]
    ended: set[Part] = field(default_factory=set)
    waiting: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))
    posted: dict[Part, int] = field(default_factory=lambda: dict.fromkeys(Part, 0))
    sent_at: dict[int, float] = field(default_factory=dict)
    sequence: int = 0
    closed: bool = False


class Sending(Generic[P]):
    """All tickets of one peer. Owned by one thread; `clock` is monotonic."""

    def __init__(self, clock: Callable[[], float], *, in_flight_max: int, fenced_max: int = 1024) -> None:
        self._clock = clock
        self._in_flight_max = in_flight_max
        self._fenced_max = fenced_max
        self._asked_at: dict[int, float] = {}
        self._asks = 0
        self._posts = 0
        self._open: dict[ReservationId, _Open] = {}
        self._queue: deque[tuple[_Open, Part, P]] = deque()
        self._in_flight: dict[int, tuple[_Open, Part]] = {}
        # Withdrawn or settled reservations, and the number up to which all that are not open count as such.
        self._fenced: deque[ReservationId] = deque()
        self._fenced_up_to = -1
        self._events: list[SendingEvent] = []

    # What the request asks for

    def ask(self) -> int:
        """A new ask. The lease of its grant counts from now, so it ends here before it ends at the peer."""
        self._asks += 1
        self._asked_at[self._asks] = self._clock()
        return self._asks

    def forget(self, ask: int) -> None:
        """The ask is not wanted any more; its grant will be declined."""
        self._asked_at.pop(ask, None)

    def push(self, ticket: Ticket, part: Part, payloads: Iterable[P]) -> None:
        """Queues writes of an open ticket; a no-op when it has closed (its failure is or was among the events)."""
        if (entry := self._live(ticket)) is None:
            return
        assert part in entry.parts, f"{ticket} has no {part.value}"
        assert part not in entry.ended, f"{ticket}: the {part.value} was ended before"
        for payload in payloads:
            self._queue.append((entry, part, payload))
            entry.waiting[part] += 1

    def end(self, ticket: Ticket, part: Part) -> None:
        """Nothing more of the part follows. Once its writes have settled, PartDone comes among the events."""
        if (entry := self._live(ticket)) is not None:
            assert part in entry.parts, f"{ticket} has no {part.value}"
            entry.ended.add(part)
            self._advance(entry)

    def skip(self, ticket: Ticket, part: Part) -> None:
        """Nothing of the part will come. The ticket settles with its other parts, which tells the peer."""
        if (entry := self._live(ticket)) is not None:
            assert part not in entry.ended, f"{ticket}: the {part.value} was ended before"
            entry.parts.discard(part)
            self._advance(entry)

    def abandon(self, ticket: Ticket, error: ServingError) -> None:
        """The request failed here; what is posted settles, nothing more is posted."""
        if (entry := self._live(ticket)) is not None:
            self._close(entry, error)

    def progress(self, ticket: Ticket) -> int | None:
        """A sign of life is about to be sent: its sequence number, None when the ticket is not open."""
        if (entry := self._live(ticket)) is None:
            return None
        entry.sequence += 1
        entry.sent_at[entry.sequence] = self._clock()
        return entry.sequence

    # What the peer says

    def granted(self, ticket: Ticket, ask: int, lease_s: float, parts: Collection[Part]) -> Answer:
        """A grant arrived. KNOWN ones change nothing; DECLINED ones are settled at once, for the peer to free."""
        if (known := self._open.get(ticket.reservation)) is not None and known.ticket == ticket:
            return Answer.KNOWN
        asked_at = self._asked_at.pop(ask, None)
        if asked_at is None or self._is_fenced(ticket.reservation):
            self._fence(ticket.reservation)
            self._events.append(TicketSettled(ticket))
            return Answer.DECLINED
        assert Part.STATE in parts
        self._open[ticket.reservation] = _Open(ticket, lease_s, asked_at + lease_s, set(parts))
        return Answer.TAKEN

    def renewed(self, ticket: Ticket, sequence: int) -> None:
        """The peer took a sign of life: the lease counts from when that was sent."""
        entry = self._live(ticket)
        if entry is None or (sent_at := entry.sent_at.get(sequence)) is None:
            return
        entry.lease_until = max(entry.lease_until, sent_at + entry.lease_s)
        entry.sent_at = {number: at for number, at in entry.sent_at.items() if number > sequence}

    def withdrawn(self, ticket: Ticket) -> None:
        """The peer wants no more of it; TicketSettled comes when that is so."""
        entry = self._open.get(ticket.reservation)
        if entry is not None and entry.ticket == ticket:
            self._close(entry, TransferFailed(f"{ticket} was withdrawn by its receiver"))
        elif entry is None:
            self._fence(ticket.reservation)
            self._events.append(TicketSettled(ticket))

    def lost(self, error: ServingError) -> None:
        """The peer is gone: nothing more is posted to it. Writes in flight end with their own errors."""
        self._asked_at.clear()
        for entry in list(self._open.values()):
            self._close(entry, error)

    # What the transport does

    def posts(self) -> list[Post[P]]:
        """Writes to post now, in push order; each must later be reported by `settled` or `failed`."""
        self.expire()
        posts: list[Post[P]] = []
        while self._queue and len(self._in_flight) < self._in_flight_max:
            entry, part, payload = self._queue.popleft()
            if entry.closed:
                continue
            entry.waiting[part] -= 1
            entry.posted[part] += 1
            self._posts += 1
            self._in_flight[self._posts] = (entry, part)
            posts.append(Post(self._posts, entry.ticket, part, payload))
        return posts

    def settled(self, number: int) -> None:
        """A posted write is complete at the peer."""
        entry, part = self._in_flight.pop(number)
        entry.posted[part] -= 1
        self._advance(entry)

    def failed(self, number: int, error: ServingError) -> None:
        """A posted write ended without being complete, and cannot go on."""
        entry, part = self._in_flight.pop(number)
        entry.posted[part] -= 1
        self._close(entry, error)

    def expire(self) -> None:
        """Closes tickets whose lease has run out on this side's clock; `posts` does it too."""
        now = self._clock()
        for entry in [entry for entry in self._open.values() if not entry.closed and entry.lease_until <= now]:
            error = LeaseExpired(f"{entry.ticket}: no sign of life from the receiver within {entry.lease_s:g} s")
            self._close(entry, error)

    def take_events(self) -> list[SendingEvent]:
        """What happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    # Inspection

    def is_open(self, ticket: Ticket) -> bool:
        """Whether more may be pushed under the ticket."""
        return self._live(ticket) is not None

    @property
    def in_flight_count(self) -> int:
        """Posted writes that have not settled."""
        return len(self._in_flight)

    # Inside

    def _live(self, ticket: Ticket) -> _Open | None:
        entry = self._open.get(ticket.reservation)
        return entry if entry is not None and entry.ticket == ticket and not entry.closed else None

    def _advance(self, entry: _Open) -> None:
        """Reports parts that are complete, and the end of the ticket when it has nothing left to write."""
        if not entry.closed:
            for part in [part for part in Part if part in entry.ended & entry.parts]:
                if not entry.waiting[part] and not entry.posted[part]:
                    entry.parts.discard(part)
                    self._events.append(PartDone(entry.ticket, part))
            entry.closed = not entry.parts
        if entry.closed and not any(entry.posted.values()) and entry.ticket.reservation in self._open:
            del self._open[entry.ticket.reservation]
            self._fence(entry.ticket.reservation)
            self._events.append(TicketSettled(entry.ticket))

    def _close(self, entry: _Open, error: ServingError) -> None:
        if not entry.closed:
            entry.closed = True
            self._events.append(TicketFailed(entry.ticket, error))
        self._advance(entry)

    def _fence(self, reservation: ReservationId) -> None:
        self._fenced.append(reservation)
        if len(self._fenced) > self._fenced_max:
            # Receivers count upward: what is older than a forgotten one can only be a straggler.
            self._fenced_up_to = max(self._fenced_up_to, self._fenced.popleft())

    def _is_fenced(self, reservation: ReservationId) -> bool:
        return reservation <= self._fenced_up_to or reservation in self._fenced
