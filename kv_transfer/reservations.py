"""What a receiver has promised to senders, and when the units may be used again; pure policy over the pools.

A unit that a peer may still write is RESERVED while its promise stands and QUARANTINED when the promise is over. Out of
quarantine leads only the sender's word that its writes have settled, or proof that the sender is dead: never a clock.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from kv_transfer.plan import Piece
from segue.errors import PeerLost
from segue.handoff import Part, Ticket, UnitRow
from segue.ids import RequestId, ReservationId, WorkerId
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName


class Hold(Enum):
    """Where a part of a promise stands: the peer may write it, has written all of it, or was told to stop."""

    WRITABLE = auto()
    ARRIVED = auto()
    QUARANTINED = auto()


@dataclass(slots=True)
class _Held:
    rows: tuple[UnitRow, ...]
    hold: Hold = Hold.WRITABLE


@dataclass(slots=True)
class _Promise:
    ticket: Ticket
    peer: WorkerId
    lease_until: float
    parts: dict[Part, _Held] = field(default_factory=dict)
    quarantined_at: float | None = None


class Reservations:
    """Every promise of one worker. Owned by the thread that owns the pools; `clock` is monotonic."""

    def __init__(self, pools: Mapping[ComponentName, Pool], clock: Callable[[], float], *, lease_s: float) -> None:
        self._pools = pools
        self._clock = clock
        self.lease_s = lease_s
        self._next = ReservationId(1)
        self._promises: dict[ReservationId, _Promise] = {}
        # Worker ids name one start of one process, so the dead stay dead.
        self._dead: set[WorkerId] = set()

    # Promises

    def grant(
        self, peer: WorkerId, request_id: RequestId, attempt: int, room: Sequence[Piece]
    ) -> tuple[Ticket, tuple[UnitRow, ...]]:
        """Sets units aside for the pieces of `room`. All or nothing over all components (PoolExhausted).

        Raises PeerLost for a peer that was proven dead: nobody would ever say that its writes have settled.
        """
        if peer in self._dead:
            raise PeerLost(f"request {request_id}: {peer} asked for units before it died")
        rows: list[UnitRow] = []
        try:
            for piece in room:
                units = self._pools[piece.component].alloc(piece.stop - piece.first, Owner.RESERVED)
                rows.append(UnitRow(piece.part, piece.component, piece.first, tuple(units)))
        except BaseException:
            self._free(rows, Owner.RESERVED)
            raise
        ticket = Ticket(request_id, self._next, attempt)
        self._next = ReservationId(self._next + 1)
        promise = _Promise(ticket, peer, self._clock() + self.lease_s)
        for part in Part:
            if own := tuple(row for row in rows if row.part is part):
                promise.parts[part] = _Held(own)
        assert Part.STATE in promise.parts, f"{ticket} was promised no state"
        self._promises[ticket.reservation] = promise
        return ticket, tuple(rows)

    def progress(self, ticket: Ticket) -> bool:
        """A sign of life of the sender renews the lease; whether it did, so that the sender may be told."""
        promise = self._find(ticket)
        if promise is None or not _has(promise, Hold.WRITABLE):
            return False
        promise.lease_until = self._clock() + self.lease_s
        return True

    def may_write(self, ticket: Ticket) -> tuple[UnitRow, ...]:
        """Rows that bytes under this ticket may go to now; none once it is over, or for another attempt."""
        promise = self._find(ticket)
        if promise is None:
            return ()
        return tuple(row for held in promise.parts.values() if held.hold is Hold.WRITABLE for row in held.rows)

    def arrived(self, ticket: Ticket, part: Part) -> bool:
        """The sender says that every write of the part has settled. False when that is no news, and changes nothing."""
        promise = self._find(ticket)
        held = promise.parts.get(part) if promise is not None else None
        if held is None or held.hold is not Hold.WRITABLE:
            return False
        held.hold = Hold.ARRIVED
        return True

    def take(self, ticket: Ticket, part: Part) -> tuple[UnitRow, ...]:
        """Hands the units of a part that has arrived to whoever runs or caches the request: they are HELD now."""
        promise = self._find(ticket)
        assert promise is not None, f"{ticket} is not promised anything"
        held = promise.parts[part]
        assert held.hold is Hold.ARRIVED, f"{ticket}: its {part.value} has not arrived"
        for row in held.rows:
            self._pools[row.component].move(_units(row), Owner.RESERVED, Owner.HELD)
        self._drop(promise, part)
        return held.rows

    # Ends

    def cancel(self, ticket: Ticket) -> bool:
        """The promise is over. True when its sender must be told, because units wait in quarantine for its answer."""
        promise = self._find(ticket)
        if promise is None:
            return False
        for part in list(promise.parts):
            if promise.parts[part].hold is Hold.ARRIVED:
                self._free(promise.parts[part].rows, Owner.RESERVED)
                self._drop(promise, part)
        self._quarantine(promise)
        return _has(promise, Hold.QUARANTINED)

    def expire(self) -> list[Ticket]:
        """Ends promises whose lease has run out, and returns them. A part that has arrived stays."""
        now = self._clock()
        over = [p for p in self._promises.values() if p.lease_until <= now and _has(p, Hold.WRITABLE)]
        for promise in over:
            self._quarantine(promise)
        return [promise.ticket for promise in over]

    def settled(self, ticket: Ticket) -> set[Part]:
        """The sender will never write again under the ticket. Returns parts still awaited: they will not come."""
        promise = self._find(ticket)
        return self._settle(promise) if promise is not None else set()

    def proven_dead(self, peer: WorkerId) -> list[tuple[Ticket, set[Part]]]:
        """No process or connection of the peer exists that could write. Returns what was still awaited of it."""
        self._dead.add(peer)
        ended = [(p.ticket, self._settle(p)) for p in list(self._promises.values()) if p.peer == peer]
        return [(ticket, parts) for ticket, parts in ended if parts]

    # Inspection

    def quarantine_age_s(self) -> float:
        """How long the oldest quarantine has lasted, 0 when there is none."""
        since = [p.quarantined_at for p in self._promises.values() if p.quarantined_at is not None]
        return self._clock() - min(since) if since else 0.0

    def quarantined(self) -> list[tuple[WorkerId, Ticket]]:
        """Whose answer or death is waited for."""
        return [(p.peer, p.ticket) for p in self._promises.values() if _has(p, Hold.QUARANTINED)]

    def next_expiry(self) -> float | None:
        """When `expire` has something to do next, on the clock; None while nothing is awaited."""
        return min((p.lease_until for p in self._promises.values() if _has(p, Hold.WRITABLE)), default=None)

    def check(self) -> None:
        """Asserts that exactly the units of promises are reserved or quarantined, each once."""
        owned: dict[ComponentName, list[int]] = {name: [] for name in self._pools}
        for promise in self._promises.values():
            assert promise.parts, f"{promise.ticket} stands without units"
            for held in promise.parts.values():
                owner = Owner.QUARANTINED if held.hold is Hold.QUARANTINED else Owner.RESERVED
                for row in held.rows:
                    owned[row.component] += _units(row)
                    assert all(self._pools[row.component].owner(unit) is owner for unit in _units(row)), promise.ticket
        for name, pool in self._pools.items():
            counts = pool.counts()
            assert len(owned[name]) == len(set(owned[name])), f"a unit of {name} is promised twice"
            assert len(owned[name]) == counts.reserved + counts.quarantined, f"{name}: a promised unit is nobody's"

    # Inside

    def _find(self, ticket: Ticket) -> _Promise | None:
        promise = self._promises.get(ticket.reservation)
        return promise if promise is not None and promise.ticket == ticket else None

    def _quarantine(self, promise: _Promise) -> None:
        for held in promise.parts.values():
            if held.hold is Hold.WRITABLE:
                for row in held.rows:
                    self._pools[row.component].move(_units(row), Owner.RESERVED, Owner.QUARANTINED)
                held.hold = Hold.QUARANTINED
                promise.quarantined_at = promise.quarantined_at or self._clock()

    def _settle(self, promise: _Promise) -> set[Part]:
        awaited = {part for part, held in promise.parts.items() if held.hold is Hold.WRITABLE}
        for part, held in list(promise.parts.items()):
            if held.hold is Hold.ARRIVED:
                continue
            self._free(held.rows, Owner.RESERVED if held.hold is Hold.WRITABLE else Owner.QUARANTINED)
            self._drop(promise, part)
        promise.quarantined_at = None
        return awaited

    def _drop(self, promise: _Promise, part: Part) -> None:
        del promise.parts[part]
        if not promise.parts:
            del self._promises[promise.ticket.reservation]

    def _free(self, rows: Sequence[UnitRow], owner: Owner) -> None:
        for row in rows:
            self._pools[row.component].free(_units(row), owner)


def _has(promise: _Promise, hold: Hold) -> bool:
    return any(held.hold is hold for held in promise.parts.values())


def _units(row: UnitRow) -> list[int]:
    units = [unit for unit in row.units if unit is not None]
    assert len(units) == len(row.units)
    return units
