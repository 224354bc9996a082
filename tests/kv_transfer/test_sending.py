"""A sender writes only under an open ticket, and says that it has settled only when that is so."""

from kv_transfer.sending import Answer, PartDone, Post, Sending, SendingEvent, TicketFailed, TicketSettled
from segue.errors import LeaseExpired, PeerLost, TransferFailed
from segue.handoff import Part, Ticket
from segue.ids import RequestId, ReservationId


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ticket(reservation: int = 1, attempt: int = 1) -> Ticket:
    return Ticket(RequestId("r"), ReservationId(reservation), attempt)


def opened(in_flight_max: int = 2, parts: tuple[Part, ...] = (Part.STATE,)) -> tuple[Sending[str], Clock]:
    """A sender with ticket 1 granted for 10 s from time 0."""
    clock = Clock()
    sending = Sending[str](clock, in_flight_max=in_flight_max)
    assert sending.granted(ticket(), sending.ask(), 10.0, parts) is Answer.TAKEN
    return sending, clock


def posted(sending: Sending[str]) -> list[Post[str]]:
    return sending.posts()


def failed(events: list[SendingEvent]) -> list[type[Exception]]:
    return [type(event.error) for event in events if isinstance(event, TicketFailed)]


def test_a_part_is_done_when_all_its_writes_have_settled_and_then_the_ticket() -> None:
    sending, _ = opened()
    sending.push(ticket(), Part.STATE, ["a", "b", "c"])
    sending.end(ticket(), Part.STATE)
    first, second = posted(sending)
    assert (first.payload, second.payload) == ("a", "b")
    sending.settled(second.number)
    (third,) = posted(sending)
    sending.settled(third.number)
    assert sending.take_events() == []
    sending.settled(first.number)
    assert sending.take_events() == [PartDone(ticket(), Part.STATE), TicketSettled(ticket())]


def test_a_part_without_a_write_is_done_at_once() -> None:
    sending, _ = opened()
    sending.end(ticket(), Part.STATE)
    assert sending.take_events() == [PartDone(ticket(), Part.STATE), TicketSettled(ticket())]


def test_the_checkpoint_follows_the_state_under_the_same_ticket() -> None:
    sending, _ = opened(parts=(Part.STATE, Part.CHECKPOINT))
    sending.end(ticket(), Part.STATE)
    assert sending.take_events() == [PartDone(ticket(), Part.STATE)]
    sending.push(ticket(), Part.CHECKPOINT, ["c"])
    sending.end(ticket(), Part.CHECKPOINT)
    sending.settled(posted(sending)[0].number)
    assert sending.take_events() == [PartDone(ticket(), Part.CHECKPOINT), TicketSettled(ticket())]


def test_a_withdrawn_ticket_posts_nothing_more_and_settles_after_its_last_write() -> None:
    sending, _ = opened(in_flight_max=1)
    sending.push(ticket(), Part.STATE, ["a", "b"])
    (post,) = posted(sending)
    sending.withdrawn(ticket())
    assert failed(sending.take_events()) == [TransferFailed]
    assert posted(sending) == []
    sending.settled(post.number)
    assert posted(sending) == []
    assert sending.take_events() == [TicketSettled(ticket())]


def test_a_withdrawal_that_overtakes_its_grant_fences_it() -> None:
    clock = Clock()
    sending = Sending[str](clock, in_flight_max=1)
    ask = sending.ask()
    sending.withdrawn(ticket())
    assert sending.granted(ticket(), ask, 10.0, [Part.STATE]) is Answer.DECLINED
    assert sending.take_events() == [TicketSettled(ticket()), TicketSettled(ticket())]


def test_a_fence_that_was_forgotten_still_holds() -> None:
    sending = Sending[str](Clock(), in_flight_max=1, fenced_max=2)
    for reservation in range(1, 6):
        sending.withdrawn(ticket(reservation))
    for reservation in range(1, 6):
        assert sending.granted(ticket(reservation), sending.ask(), 10.0, [Part.STATE]) is Answer.DECLINED
    assert sending.granted(ticket(6), sending.ask(), 10.0, [Part.STATE]) is Answer.TAKEN


def test_a_repeated_grant_changes_nothing() -> None:
    sending, _ = opened()
    assert sending.granted(ticket(), 1, 10.0, [Part.STATE]) is Answer.KNOWN
    assert sending.take_events() == []


def test_a_grant_that_nobody_waits_for_is_settled_at_once() -> None:
    sending = Sending[str](Clock(), in_flight_max=1)
    ask = sending.ask()
    sending.forget(ask)
    assert sending.granted(ticket(), ask, 10.0, [Part.STATE]) is Answer.DECLINED
    assert sending.take_events() == [TicketSettled(ticket())]


def test_a_message_about_another_attempt_changes_nothing() -> None:
    sending, clock = opened()
    sending.withdrawn(ticket(attempt=2))
    sequence = sending.progress(ticket())
    assert sequence is not None
    clock.now = 9.0
    sending.renewed(ticket(attempt=2), sequence)
    assert sending.is_open(ticket())
    clock.now = 10.0
    sending.expire()
    assert failed(sending.take_events()) == [LeaseExpired]


def test_the_lease_counts_from_the_ask_so_that_it_ends_here_first() -> None:
    clock = Clock()
    sending = Sending[str](clock, in_flight_max=1)
    ask = sending.ask()
    clock.now = 4.0
    sending.granted(ticket(), ask, 10.0, [Part.STATE])
    sending.push(ticket(), Part.STATE, ["a"])
    clock.now = 10.0
    assert posted(sending) == []
    assert failed(sending.take_events()) == [LeaseExpired]


def test_the_lease_is_renewed_from_when_the_progress_was_sent() -> None:
    sending, clock = opened()
    clock.now = 6.0
    sequence = sending.progress(ticket())
    assert sequence is not None
    clock.now = 9.0
    sending.renewed(ticket(), sequence)
    clock.now = 15.9
    sending.expire()
    assert sending.is_open(ticket())
    clock.now = 16.0
    sending.expire()
    assert not sending.is_open(ticket())


def test_an_old_renewal_does_not_shorten_the_lease() -> None:
    sending, clock = opened()
    first = sending.progress(ticket())
    clock.now = 5.0
    second = sending.progress(ticket())
    assert first is not None
    assert second is not None
    sending.renewed(ticket(), second)
    sending.renewed(ticket(), first)
    clock.now = 14.0
    sending.expire()
    assert sending.is_open(ticket())


def test_a_failed_write_ends_the_ticket_with_its_own_error() -> None:
    sending, _ = opened()
    sending.push(ticket(), Part.STATE, ["a", "b"])
    first, second = posted(sending)
    sending.failed(first.number, PeerLost("gone"))
    assert failed(sending.take_events()) == [PeerLost]
    sending.settled(second.number)
    assert sending.take_events() == [TicketSettled(ticket())]


def test_a_lost_peer_ends_every_ticket_but_writes_in_flight_are_still_awaited() -> None:
    sending, _ = opened(in_flight_max=1)
    sending.granted(ticket(2), sending.ask(), 10.0, [Part.STATE])
    sending.push(ticket(), Part.STATE, ["a"])
    (post,) = posted(sending)
    sending.lost(PeerLost("gone"))
    events = sending.take_events()
    assert failed(events) == [PeerLost, PeerLost]
    assert TicketSettled(ticket(2)) in events
    assert TicketSettled(ticket()) not in events
    sending.failed(post.number, PeerLost("gone"))
    assert sending.take_events() == [TicketSettled(ticket())]


def test_what_is_pushed_after_the_end_of_a_ticket_is_dropped() -> None:
    sending, _ = opened()
    sending.abandon(ticket(), TransferFailed("no"))
    sending.push(ticket(), Part.STATE, ["a"])
    sending.end(ticket(), Part.STATE)
    assert posted(sending) == []
    assert sending.progress(ticket()) is None
