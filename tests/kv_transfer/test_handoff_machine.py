"""Sender and receiver under a network that drops, delays, repeats, reorders and garbles, and peers that die.

Two things must hold whatever happens: no unit with a possible writer belongs to anybody else, and no unit is lost.
"""

from dataclasses import dataclass, replace

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv_transfer.plan import Piece
from kv_transfer.reservations import Reservations
from kv_transfer.sending import Answer, PartDone, Sending, TicketSettled
from segue.errors import PeerLost, PoolExhausted, TransferFailed
from segue.handoff import Part, Ticket, UnitRow
from segue.ids import RequestId, ReservationId, WorkerId
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName

FULL, RECURRENT = ComponentName.FULL, ComponentName.RECURRENT
LEASE_S = 10.0
Unit = tuple[ComponentName, int]


@dataclass(frozen=True)
class Message:
    """One message in the network; `kind` says which, `ticket` is what may be garbled."""

    kind: str
    peer: WorkerId
    ticket: Ticket | None = None
    number: int = 0
    checkpoint: bool = False
    part: Part = Part.STATE


@dataclass
class Write:
    """A posted write that may land at any time."""

    peer: WorkerId
    number: int
    ticket: Ticket
    units: tuple[Unit, ...]


class Handoffs(RuleBasedStateMachine):
    """One receiver, two senders at a time. Payloads of pushes are the units that they write."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pools = {FULL: Pool("full", 8), RECURRENT: Pool("recurrent", 5)}
        self.reservations = Reservations(self.pools, lambda: self.now, lease_s=LEASE_S)
        self.senders: dict[WorkerId, Sending[tuple[Unit, ...]]] = {}
        self.dead: set[WorkerId] = set()
        self.network: list[Message] = []
        self.writes: list[Write] = []
        self.granted: dict[Ticket, tuple[UnitRow, ...]] = {}
        self.promised_by: dict[Ticket, WorkerId] = {}
        self.promised_to: dict[Unit, Ticket] = {}
        self.lease_until: dict[Ticket, float] = {}
        self.opened: dict[WorkerId, dict[Ticket, set[Part]]] = {}
        self.arrived: set[tuple[Ticket, Part]] = set()
        self.running: list[tuple[UnitRow, ...]] = []
        self.started = 0
        for _ in range(2):
            self.start_sender()

    def start_sender(self) -> None:
        self.started += 1
        name = WorkerId(f"sender-{self.started}")
        self.senders[name] = Sending(lambda: self.now, in_flight_max=2, fenced_max=2)
        self.opened[name] = {}

    def peer(self, pick: int) -> WorkerId:
        return sorted(self.senders)[pick % len(self.senders)]

    def ticket(self, pick: int) -> Ticket:
        return sorted(self.granted, key=lambda ticket: ticket.reservation)[pick % len(self.granted)]

    # The sender

    @rule(pick=st.integers(0, 1), checkpoint=st.booleans())
    def ask(self, pick: int, checkpoint: bool) -> None:
        peer = self.peer(pick)
        number = self.senders[peer].ask()
        self.network.append(Message("ask", peer, number=number, checkpoint=checkpoint))

    @rule(pick=st.integers(0, 1), checkpoint=st.booleans(), luck=st.integers(0, 7), delay_s=st.sampled_from([0, 0, 6]))
    def hand_over(self, pick: int, checkpoint: bool, luck: int, delay_s: int) -> None:
        """A handoff whose first steps go well: without luck few sequences would get to the interesting places."""
        peer, known = self.peer(pick), set(self.granted)
        self.handle(Message("ask", peer, number=self.senders[peer].ask(), checkpoint=checkpoint))
        self.let_time_pass(delay_s)
        if not (fresh := set(self.granted) - known) or luck < 1:
            return
        ticket = fresh.pop()
        self.to_sender(next(message for message in self.network if message.ticket == ticket))
        if ticket not in self.opened[peer] or luck < 2:
            return
        self.write(peer, ticket, Part.STATE, 2, ends=luck > 2)
        if luck > 3:
            self.post_all(peer)
        for _ in range({5: 1, 6: 2, 7: 2}.get(luck, 0)):
            if mine := [i for i, write in enumerate(self.writes) if write.ticket == ticket]:
                self.land(mine[0])
        if luck in (5, 7):
            for message in [message for message in self.network if message.ticket == ticket]:
                self.handle(message)

    @precondition(lambda self: self.now > LEASE_S)
    @rule(pick=st.integers(0, 1), number=st.integers(1, 4))
    def forget(self, pick: int, number: int) -> None:
        self.senders[self.peer(pick)].forget(number)

    @precondition(lambda self: any(self.opened.values()))
    @rule(pick=st.integers(0, 7), part=st.sampled_from(Part), units=st.integers(1, 3), ends=st.booleans())
    def push(self, pick: int, part: Part, units: int, ends: bool) -> None:
        peer, ticket = self.open_ticket(pick)
        if part in self.opened[peer][ticket]:
            self.write(peer, ticket, part, units, ends)

    def write(self, peer: WorkerId, ticket: Ticket, part: Part, units: int, ends: bool) -> None:
        sending = self.senders[peer]
        own = [(row.component, unit) for row in self.granted[ticket] if row.part is part for unit in _units(row)]
        sending.push(ticket, part, [tuple(own[:units]), tuple(own[units:] or own[:1])])
        if ends:
            self.opened[peer][ticket].discard(part)
            sending.end(ticket, part)
        self.drain(peer)

    @precondition(lambda self: any(self.opened.values()))
    @rule(pick=st.integers(0, 7))
    def progress(self, pick: int) -> None:
        peer, ticket = self.open_ticket(pick)
        if (sequence := self.senders[peer].progress(ticket)) is not None:
            self.network.append(Message("progress", peer, ticket, sequence))

    @precondition(lambda self: any(self.opened.values()))
    @rule(pick=st.integers(0, 7))
    def abandon(self, pick: int) -> None:
        peer, ticket = self.open_ticket(pick)
        self.senders[peer].abandon(ticket, TransferFailed("the request failed"))
        self.drain(peer)

    @rule(pick=st.integers(0, 1))
    def post(self, pick: int) -> None:
        self.post_all(self.peer(pick))

    def post_all(self, peer: WorkerId) -> None:
        for post in self.senders[peer].posts():
            assert self.now < self.lease_until[post.ticket], "a write was posted when its promise could be over"
            self.writes.append(Write(peer, post.number, post.ticket, post.payload))
        self.drain(peer)

    @precondition(lambda self: self.writes)
    @rule(pick=st.integers(0, 7))
    def land(self, pick: int) -> None:
        write = self.writes.pop(pick % len(self.writes))
        self.require_safe(write.ticket, write.units)
        if write.peer in self.senders:
            self.senders[write.peer].settled(write.number)
            self.drain(write.peer)

    @precondition(lambda self: self.writes)
    @rule(pick=st.integers(0, 7))
    def fail(self, pick: int) -> None:
        write = self.writes.pop(pick % len(self.writes))
        if write.peer in self.senders:
            self.senders[write.peer].failed(write.number, PeerLost("the connection broke"))
            self.drain(write.peer)

    @precondition(lambda self: len(self.writes) > 1)
    @rule(pick=st.integers(0, 1))
    def lose_the_receiver(self, pick: int) -> None:
        self.senders[self.peer(pick)].lost(PeerLost("no heartbeat"))
        self.drain(self.peer(pick))

    @precondition(lambda self: len(self.granted) >= self.started)
    @rule(pick=st.integers(0, 1))
    def kill_a_sender(self, pick: int) -> None:
        """What it has posted may still land, until its death is proven."""
        peer = self.peer(pick)
        del self.senders[peer]
        del self.opened[peer]
        self.dead.add(peer)
        self.start_sender()

    @precondition(lambda self: self.dead)
    @rule()
    def prove_death(self) -> None:
        peer = self.dead.pop()
        self.writes = [write for write in self.writes if write.peer != peer]
        self.reservations.proven_dead(peer)

    # The receiver

    @precondition(lambda self: self.granted)
    @rule(pick=st.integers(0, 7))
    def cancel(self, pick: int) -> None:
        self.withdraw_if(self.ticket(pick))

    @rule(seconds=st.sampled_from([1.0, 6.0, LEASE_S]))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        for ticket in self.reservations.expire():
            self.network.append(Message("withdraw", self.promised_by[ticket], ticket))

    @precondition(lambda self: self.arrived)
    @rule()
    def take(self) -> None:
        ticket, part = min(self.arrived, key=lambda pair: (pair[0].reservation, pair[1]))
        self.arrived.discard((ticket, part))
        self.running.append(self.reservations.take(ticket, part))

    @precondition(lambda self: self.running)
    @rule()
    def finish_a_request(self) -> None:
        for row in self.running.pop(0):
            self.pools[row.component].free(_units(row))

    @rule(count=st.integers(1, 3))
    def start_a_local_request(self, count: int) -> None:
        try:
            units = self.pools[FULL].alloc(count)
        except PoolExhausted:
            return
        self.running.append((UnitRow(Part.STATE, FULL, 0, tuple(units)),))

    # The network

    @precondition(lambda self: self.network)
    @rule(pick=st.integers(0, 15))
    def deliver(self, pick: int) -> None:
        self.handle(self.network.pop(pick % len(self.network)))

    @precondition(lambda self: self.network)
    @rule(count=st.integers(1, 3))
    def deliver_newest(self, count: int) -> None:
        """Messages that overtake all the others, and then their answers."""
        for _ in range(count):
            if self.network:
                self.handle(self.network.pop())

    @precondition(lambda self: self.network)
    @rule()
    def deliver_all(self) -> None:
        """A moment without faults: all that is on its way arrives in order, its answers too."""
        for _ in range(40):
            if self.network:
                self.handle(self.network.pop(0))

    @precondition(lambda self: self.network)
    @rule(pick=st.integers(0, 15))
    def repeat(self, pick: int) -> None:
        self.network.append(self.network[pick % len(self.network)])

    @precondition(lambda self: self.network)
    @rule(pick=st.integers(0, 15))
    def drop(self, pick: int) -> None:
        self.network.pop(pick % len(self.network))

    @precondition(lambda self: any(message.ticket for message in self.network))
    @rule(pick=st.integers(0, 15), field=st.sampled_from(["request_id", "attempt", "reservation"]))
    def garble(self, pick: int, field: str) -> None:
        named = [message for message in self.network if message.ticket is not None]
        message = named[pick % len(named)]
        assert message.ticket is not None
        garbled = {
            "request_id": replace(message.ticket, request_id=RequestId("another")),
            "attempt": replace(message.ticket, attempt=9),
            "reservation": replace(message.ticket, reservation=ReservationId(message.ticket.reservation + 1)),
        }
        ticket = garbled[field]
        self.network.append(replace(message, ticket=ticket))

    # What must hold

    @invariant()
    def every_set_adds_up(self) -> None:
        for pool in self.pools.values():
            pool.check()
            pool.counts()
        self.reservations.check()

    @invariant()
    def no_possible_writer_has_a_unit_of_somebody_else(self) -> None:
        for write in self.writes:
            self.require_safe(write.ticket, write.units)
        for peer, tickets in self.opened.items():
            for ticket, parts in tickets.items():
                if self.senders[peer].is_open(ticket):
                    own = [row for row in self.granted[ticket] if row.part in parts]
                    self.require_safe(ticket, tuple((row.component, unit) for row in own for unit in _units(row)))

    def teardown(self) -> None:
        """Everybody answers or is proven dead at last: then every unit is free again."""
        for write in list(self.writes):
            if write.peer in self.senders:
                self.senders[write.peer].settled(write.number)
        self.writes.clear()
        for message in [message for message in self.network if message.peer not in self.dead]:
            self.handle(message)
        for ticket in list(self.granted):
            self.withdraw_if(ticket)
        for peer, ticket in self.reservations.quarantined():
            if peer in self.senders:
                sending = self.senders[peer]
                sending.withdrawn(ticket)
                for post in [write for write in self.writes if write.peer == peer]:
                    sending.settled(post.number)
                assert TicketSettled(ticket) in sending.take_events(), f"{ticket} never settles"
                self.reservations.settled(ticket)
        for peer in sorted(self.dead):
            self.reservations.proven_dead(peer)
        while self.running:
            self.finish_a_request()
        self.every_set_adds_up()
        for pool in self.pools.values():
            assert pool.free_count == pool.usable_count, f"{pool.counts()}: units were lost"

    # Inside

    def handle(self, message: Message) -> None:
        if message.kind in ("grant", "renewed", "withdraw"):
            self.to_sender(message)
        elif message.kind == "ask":
            self.grant(message)
        else:
            self.to_receiver(message)

    def grant(self, message: Message) -> None:
        room = [Piece(Part.STATE, FULL, 1, 3), Piece(Part.STATE, RECURRENT, 0, 1)]
        if message.checkpoint:
            room.append(Piece(Part.CHECKPOINT, RECURRENT, 0, 1))
        try:
            ticket, rows = self.reservations.grant(message.peer, RequestId(f"r{len(self.granted)}"), 1, room)
        except (PoolExhausted, PeerLost):
            return
        assert ticket not in self.granted, f"{ticket} names two promises"
        self.granted[ticket] = rows
        self.promised_by[ticket] = message.peer
        self.lease_until[ticket] = self.now + LEASE_S
        for row in rows:
            for unit in _units(row):
                self.promised_to[row.component, unit] = ticket
        self.network.append(Message("grant", message.peer, ticket, message.number))

    def to_sender(self, message: Message) -> None:
        if (sending := self.senders.get(message.peer)) is None:
            return
        assert message.ticket is not None
        match message.kind:
            case "grant":
                rows = self.granted.get(message.ticket)
                if rows is None:
                    # A garbled grant: its rows are somebody's, but the ticket is nobody's.
                    return
                parts = {row.part for row in rows}
                if sending.granted(message.ticket, message.number, LEASE_S, parts) is Answer.TAKEN:
                    self.opened[message.peer][message.ticket] = parts
            case "renewed":
                sending.renewed(message.ticket, message.number)
            case "withdraw":
                sending.withdrawn(message.ticket)
        self.drain(message.peer)

    def to_receiver(self, message: Message) -> None:
        assert message.ticket is not None
        match message.kind:
            case "progress":
                if self.reservations.progress(message.ticket):
                    self.lease_until[message.ticket] = self.now + LEASE_S
                    self.network.append(replace(message, kind="renewed"))
            case "arrived":
                if self.reservations.arrived(message.ticket, message.part):
                    self.arrived.add((message.ticket, message.part))
            case "settled":
                self.reservations.settled(message.ticket)

    def drain(self, peer: WorkerId) -> None:
        for event in self.senders[peer].take_events():
            match event:
                case PartDone():
                    self.network.append(Message("arrived", peer, event.ticket, part=event.part))
                case TicketSettled():
                    self.network.append(Message("settled", peer, event.ticket))

    def withdraw_if(self, ticket: Ticket) -> None:
        if self.reservations.cancel(ticket):
            self.network.append(Message("withdraw", self.promised_by[ticket], ticket))
        self.arrived = {(other, part) for other, part in self.arrived if other != ticket}

    def open_ticket(self, pick: int) -> tuple[WorkerId, Ticket]:
        pairs = [(peer, ticket) for peer in sorted(self.opened) for ticket in self.opened[peer]]
        return pairs[pick % len(pairs)]

    def require_safe(self, ticket: Ticket, units: tuple[Unit, ...]) -> None:
        for component, unit in units:
            owner = self.pools[component].owner(unit)
            assert self.promised_to[component, unit] == ticket, f"{component} {unit} is promised anew, {ticket} writes"
            assert owner in (Owner.RESERVED, Owner.QUARANTINED), f"{component} {unit} is {owner.name}, {ticket} writes"


def _units(row: UnitRow) -> list[int]:
    return [unit for unit in row.units if unit is not None]


TestHandoffs = Handoffs.TestCase
TestHandoffs.settings = settings(max_examples=200, stateful_step_count=40)
