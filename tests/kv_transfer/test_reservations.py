"""Promised units come back exactly once, and never while a sender may still write them."""

import pytest

from kv_transfer.plan import Piece
from kv_transfer.reservations import Reservations
from segue.errors import PeerLost, PoolExhausted
from segue.handoff import Part, Ticket, UnitRow
from segue.ids import RequestId, WorkerId
from segue.state.pool import Pool
from segue.state.spec import ComponentName

FULL, RECURRENT = ComponentName.FULL, ComponentName.RECURRENT
PEER, OTHER = WorkerId("p"), WorkerId("o")
STATE = [Piece(Part.STATE, FULL, 2, 5), Piece(Part.STATE, RECURRENT, 0, 1)]
BOTH = [*STATE, Piece(Part.CHECKPOINT, RECURRENT, 0, 1)]


class Bench:
    """Six full pages and three slots to promise; a lease of 10 s."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pools = {FULL: Pool("full", 7), RECURRENT: Pool("recurrent", 4)}
        self.reservations = Reservations(self.pools, lambda: self.now, lease_s=10.0)

    def grant(self, room: list[Piece] = STATE, peer: WorkerId = PEER) -> tuple[Ticket, tuple[UnitRow, ...]]:
        return self.reservations.grant(peer, RequestId("r"), 1, room)

    def sets(self) -> tuple[int, int, int, int]:
        """Free, held, reserved, quarantined over both pools."""
        self.reservations.check()
        for pool in self.pools.values():
            pool.check()
        counts = [pool.counts() for pool in self.pools.values()]
        return (
            sum(one.free for one in counts),
            sum(one.held for one in counts),
            sum(one.reserved for one in counts),
            sum(one.quarantined for one in counts),
        )


def test_a_promise_names_units_by_page_and_reserves_them() -> None:
    bench = Bench()
    _, rows = bench.grant()
    assert [(row.component, row.first, len(row.units)) for row in rows] == [(FULL, 2, 3), (RECURRENT, 0, 1)]
    assert bench.sets() == (5, 0, 4, 0)


def test_a_promise_that_does_not_fit_takes_nothing() -> None:
    bench = Bench()
    with pytest.raises(PoolExhausted):
        bench.grant([Piece(Part.STATE, FULL, 0, 2), Piece(Part.STATE, RECURRENT, 0, 9)])
    assert bench.sets() == (9, 0, 0, 0)


def test_state_that_has_arrived_is_taken_over_and_held() -> None:
    bench = Bench()
    ticket, rows = bench.grant()
    assert bench.reservations.arrived(ticket, Part.STATE)
    assert bench.reservations.take(ticket, Part.STATE) == rows
    assert bench.sets() == (5, 4, 0, 0)


def test_state_that_has_not_arrived_cannot_be_taken() -> None:
    bench = Bench()
    ticket, _ = bench.grant()
    with pytest.raises(AssertionError, match="has not arrived"):
        bench.reservations.take(ticket, Part.STATE)


def test_a_repeated_or_late_arrival_is_no_news() -> None:
    bench = Bench()
    ticket, _ = bench.grant()
    assert bench.reservations.arrived(ticket, Part.STATE)
    assert not bench.reservations.arrived(ticket, Part.STATE)
    bench.reservations.take(ticket, Part.STATE)
    assert not bench.reservations.arrived(ticket, Part.STATE)


def test_a_cancelled_promise_waits_in_quarantine_for_the_senders_word() -> None:
    bench = Bench()
    ticket, _ = bench.grant()
    assert bench.reservations.cancel(ticket)
    assert bench.sets() == (5, 0, 0, 4)
    assert bench.reservations.quarantined() == [(PEER, ticket)]
    assert bench.reservations.may_write(ticket) == ()
    assert not bench.reservations.arrived(ticket, Part.STATE)
    assert bench.reservations.settled(ticket) == set()
    assert bench.sets() == (9, 0, 0, 0)


def test_no_clock_ends_a_quarantine() -> None:
    bench = Bench()
    bench.grant()
    bench.now = 10.0
    bench.reservations.expire()
    bench.now = 1e9
    assert bench.reservations.expire() == []
    assert bench.sets() == (5, 0, 0, 4)
    assert bench.reservations.quarantine_age_s() == 1e9 - 10.0


def test_progress_renews_a_lease_and_nothing_else_does() -> None:
    bench = Bench()
    ticket, _ = bench.grant()
    bench.now = 9.0
    assert bench.reservations.progress(ticket)
    bench.now = 18.9
    assert bench.reservations.expire() == []
    bench.now = 19.0
    assert bench.reservations.next_expiry() == 19.0
    assert bench.reservations.expire() == [ticket]
    assert not bench.reservations.progress(ticket)


def test_state_that_has_arrived_outlives_its_lease_and_its_sender() -> None:
    bench = Bench()
    ticket, _ = bench.grant(BOTH)
    bench.reservations.arrived(ticket, Part.STATE)
    bench.now = 10.0
    assert bench.reservations.expire() == [ticket]
    assert bench.sets() == (4, 0, 4, 1)
    assert bench.reservations.proven_dead(PEER) == []
    assert len(bench.reservations.take(ticket, Part.STATE)) == 2
    assert bench.sets() == (5, 4, 0, 0)


def test_cancelling_after_arrival_frees_at_once_what_no_one_can_write() -> None:
    bench = Bench()
    ticket, _ = bench.grant(BOTH)
    bench.reservations.arrived(ticket, Part.STATE)
    assert bench.reservations.cancel(ticket)
    assert bench.sets() == (8, 0, 0, 1)


def test_a_sender_that_settles_early_gives_up_what_was_awaited() -> None:
    bench = Bench()
    ticket, _ = bench.grant(BOTH)
    bench.reservations.arrived(ticket, Part.STATE)
    assert bench.reservations.settled(ticket) == {Part.CHECKPOINT}
    assert bench.sets() == (5, 0, 4, 0)


def test_proof_of_death_frees_all_of_that_peer_and_of_no_other() -> None:
    bench = Bench()
    first, _ = bench.grant()
    second, _ = bench.grant(peer=OTHER)
    bench.reservations.cancel(first)
    bench.reservations.cancel(second)
    assert bench.reservations.proven_dead(PEER) == []
    assert bench.reservations.quarantined() == [(OTHER, second)]
    assert bench.sets() == (5, 0, 0, 4)


def test_death_before_arrival_says_what_will_not_come() -> None:
    bench = Bench()
    ticket, _ = bench.grant()
    assert bench.reservations.proven_dead(PEER) == [(ticket, {Part.STATE})]
    assert bench.sets() == (9, 0, 0, 0)


def test_a_message_about_another_attempt_or_request_changes_nothing() -> None:
    bench = Bench()
    ticket, _ = bench.grant()
    for other in (Ticket(ticket.request_id, ticket.reservation, 2), Ticket(RequestId("x"), ticket.reservation, 1)):
        assert not bench.reservations.arrived(other, Part.STATE)
        assert not bench.reservations.cancel(other)
        assert bench.reservations.settled(other) == set()
        assert not bench.reservations.progress(other)
    assert bench.sets() == (5, 0, 4, 0)


def test_the_dead_are_promised_nothing() -> None:
    bench = Bench()
    bench.reservations.proven_dead(PEER)
    with pytest.raises(PeerLost):
        bench.grant()
    assert bench.sets() == (9, 0, 0, 0)
