"""State on its way in, one message at a time: late, repeated and foreign ones change nothing, and nothing is lost."""

from dataclasses import dataclass, replace

import pytest
import torch

from decode_service.commands import Arrived, Asked, Fail, Progressed, Submit
from decode_service.intake import CallAgain, Intake, Over, Reply
from decode_service.station import DecodeStation
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.plan import Side
from kv_transfer.receiver import Receiver
from kv_transfer.reservations import Reservations
from segue.batch.lifecycle import Phase
from segue.batch.news import Usage
from segue.batch.request import FinishReason
from segue.batch.role import Role
from segue.batch.suffix_costs import RECENT
from segue.engine import Engine
from segue.errors import DigestMismatch, LeaseExpired, PeerLost, TransferFailed
from segue.handoff import Ask, Finished, Grant, Progress, Renewed, StateDigest, Ticket
from segue.ids import Handle, RequestId, ReservationId, WorkerId
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName
from segue.state.storage import Storage
from segue.tokens import EmittedToken
from tests.decode_service.engines import PAGE, STATE
from tests.decode_service.router_end import spec
from tests.support.policies import Clock, Rig, rig

PEER = WorkerId("prefill")
H1, H2 = Handle(1), Handle(2)
FIRST = EmittedToken(9, -0.5)


@dataclass
class Door:
    """An intake with its engine and clock."""

    made: Rig
    intake: Intake
    clock: Clock

    @property
    def engine(self) -> Engine:
        return self.made.engine

    def expect(self, handle: Handle = H1, length: int = 6) -> None:
        prompt = tuple(range(3, 3 + length))
        self.engine.expect(replace(spec(f"q{handle}"), prompt=prompt), handle)
        self.intake.expect(handle, 1)

    def ask(self, handle: Handle = H1, prompt_tokens: int = 6, checkpoint: int | None = None) -> None:
        self.intake.asked(Asked(handle, 1, PEER, 1, Ask(1, prompt_tokens, checkpoint)))

    def turn(self) -> list[Reply]:
        """What the station does around a step."""
        self.intake.expire()
        record = self.engine.launch()
        if record is not None:
            self.engine.commit(record)
        self.intake.grant_promised()
        self.note_ended()
        return self.intake.take_replies()

    def note_ended(self) -> list[Exception | None]:
        ended = self.engine.take_ended()
        for one in ended:
            self.intake.ended(one.handle)
        self.engine.check()
        self.intake.check()
        return [one.error for one in ended]

    def granted(self) -> Ticket:
        self.expect()
        self.ask()
        (reply,) = self.turn()
        assert isinstance(reply.message, Grant)
        return reply.message.ticket

    def finish(self, ticket: Ticket | None, *digests: StateDigest) -> bool:
        """The sender's last word; whether it was news."""
        finished = Finished(ticket, FIRST, Usage(6, 1, 2), digests)
        news = self.intake.arrived(Arrived(H1, 1, finished))
        return news is not None

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Held, reserved and quarantined units of each pool."""
        return {pool.name: (pool.held, pool.reserved, pool.quarantined) for pool in self.engine.status().pools}


def door_of(*, cached: bool, backups: int | None = None) -> Door:
    components = frozenset({ComponentName.FULL, ComponentName.RECURRENT})
    made = rig(
        role=Role.DECODE, components=components, page_tokens=PAGE, pages=32, slots=3, cached=cached, backups=backups
    )
    forms = layouts(STATE, PAGE, Shard())
    storage = Storage(forms, {name: pool.capacity for name, pool in made.pools.items()}, torch.device("cpu"))
    clock = Clock()
    reservations = Reservations(made.pools, clock, lease_s=30.0)
    intake = Intake(made.engine, Receiver(reservations, storage, Side(forms, PAGE, None)), clock)
    return Door(made, intake, clock)


@pytest.fixture
def door() -> Door:
    return door_of(cached=False)


def test_a_grant_covers_the_prompt_and_the_first_tokens_after_it(door: Door) -> None:
    ticket = door.granted()
    # Six tokens of prompt and seven that may follow before the last.
    assert door.counts() == {"full": (0, 4, 0), "recurrent": (0, 1, 0)}
    assert door.finish(ticket)
    assert door.counts() == {"full": (4, 0, 0), "recurrent": (1, 0, 0)}
    assert door.intake.take_replies() == [Reply(H1, Over(None))]
    assert door.intake.figures.count == 1


def test_a_handoff_costs_its_queue_and_its_way_but_not_the_wait_for_room_here(door: Door) -> None:
    for number in range(RECENT):
        handle = Handle(number + 1)
        door.expect(handle)
        door.clock.now += 0.5
        door.ask(handle)
        door.clock.now += 7.0
        (reply,) = door.turn()
        assert isinstance(reply.message, Grant)
        door.clock.now += 0.25
        finished = Finished(reply.message.ticket, FIRST, Usage(6, 1, 2), ())
        assert door.intake.arrived(Arrived(handle, 1, finished)) is not None
        door.engine.cancel(handle, 1)
        door.note_ended()
        door.intake.take_replies()
    assert door.engine.costs.send_s(6) == pytest.approx(0.75)


def test_a_second_ask_and_a_second_end_are_no_news(door: Door) -> None:
    ticket = door.granted()
    door.ask()
    assert door.turn() == []
    assert door.finish(ticket)
    assert not door.finish(ticket)


def test_the_word_of_another_ticket_or_attempt_changes_nothing(door: Door) -> None:
    ticket = door.granted()
    for other in (
        Ticket(RequestId("other"), ticket.reservation, 1),
        Ticket(ticket.request_id, ReservationId(ticket.reservation + 1), 1),
        Ticket(ticket.request_id, ticket.reservation, 2),
    ):
        assert not door.finish(other)
        door.intake.settled(other)
        door.intake.progressed(Progressed(H1, 1, Progress(other, 1, 4)))
    assert door.intake.arrived(Arrived(H1, 2, Finished(ticket, FIRST, Usage()))) is None
    assert door.turn() == []
    assert door.finish(ticket)


def test_a_client_that_leaves_fences_what_was_promised(door: Door) -> None:
    ticket = door.granted()
    door.engine.cancel(H1, 1)
    door.note_ended()
    assert door.intake.take_replies() == [Reply(H1, Over(ticket))]
    assert door.counts() == {"full": (0, 0, 4), "recurrent": (0, 0, 1)}
    assert not door.finish(ticket), "what arrives now is nobody's"
    door.intake.settled(ticket)
    door.intake.settled(ticket)
    assert door.counts() == {"full": (0, 0, 0), "recurrent": (0, 0, 0)}


def test_signs_of_life_keep_a_promise_and_silence_ends_it(door: Door) -> None:
    ticket = door.granted()
    door.clock.now = 20
    door.intake.progressed(Progressed(H1, 1, Progress(ticket, 3, 4)))
    assert door.turn() == [Reply(H1, Renewed(ticket, 3))]
    door.clock.now = 45
    assert door.turn() == []
    door.clock.now = 51
    door.intake.expire()
    (error,) = door.note_ended()
    assert isinstance(error, LeaseExpired)
    assert door.intake.take_replies() == [Reply(H1, Over(ticket))]
    assert door.counts()["full"] == (0, 0, 4)


def test_a_sender_that_gives_up_costs_an_error_and_no_page(door: Door) -> None:
    ticket = door.granted()
    door.intake.settled(ticket)
    (error,) = door.note_ended()
    assert isinstance(error, TransferFailed)
    assert door.intake.take_replies() == [Reply(H1, Over(None))]
    assert door.counts()["full"] == (0, 0, 0)


def test_a_dead_sender_costs_an_error_and_no_page(door: Door) -> None:
    door.granted()
    door.intake.peer_died(PEER)
    (error,) = door.note_ended()
    assert isinstance(error, PeerLost)
    assert door.counts()["full"] == (0, 0, 0)


def test_state_with_another_digest_is_not_used(door: Door) -> None:
    ticket = door.granted()
    assert not door.finish(ticket, StateDigest(ComponentName.FULL, "0" * 32))
    (error,) = door.note_ended()
    assert isinstance(error, DigestMismatch)
    assert door.counts() == {"full": (0, 0, 0), "recurrent": (0, 0, 0)}


def test_an_ask_for_another_prompt_is_refused(door: Door) -> None:
    door.expect()
    door.ask(prompt_tokens=7)
    door.turn()
    assert door.counts()["full"] == (0, 0, 0)
    assert door.engine.idle


def test_an_output_that_ends_at_once_gives_its_promise_back(door: Door) -> None:
    ticket = door.granted()
    finished = Finished(None, EmittedToken(1, 0.0), Usage(6, 1, 0), reason="stop")
    news = door.intake.arrived(Arrived(H1, 1, finished))
    assert news is not None
    assert [end.reason for end in news.ended] == [FinishReason.STOP]
    assert door.intake.take_replies() == [Reply(H1, Over(ticket))]
    door.intake.settled(ticket)
    assert door.counts()["full"] == (0, 0, 0)


def test_a_large_quarantine_is_seen_and_a_small_one_is_not(door: Door) -> None:
    door.granted()
    door.engine.cancel(H1, 1)
    door.note_ended()
    door.clock.now = 100
    assert door.intake.stuck_for_s(share=0.2) == 100
    assert door.intake.stuck_for_s(share=0.5) == 0


def test_a_call_that_breaks_fails_a_request_that_waits_for_it_and_no_other(door: Door) -> None:
    lost = Fail(H1, 1, PeerLost("the call broke"))
    door.granted()
    door.intake.failed(replace(lost, attempt=2))
    assert door.note_ended() == []
    door.intake.failed(lost)
    (error,) = door.note_ended()
    assert isinstance(error, PeerLost)


def test_a_call_that_breaks_after_the_state_has_arrived_is_no_news(door: Door) -> None:
    assert door.finish(door.granted())
    door.intake.failed(Fail(H1, 1, PeerLost("the call broke")))
    assert door.note_ended() == []
    assert door.engine.status().running == 1


def test_a_late_word_of_an_earlier_call_is_none_of_the_call_after_it() -> None:
    door = door_of(cached=False, backups=0)
    assert door.finish(door.granted())
    (request,) = door.engine.live_requests()
    door.made.take_off(request)
    door.turn()
    door.intake.call_again()
    (again,) = [reply.message for reply in door.intake.take_replies() if isinstance(reply.message, CallAgain)]
    assert again.call != 0
    door.intake.failed(Fail(H1, 1, PeerLost("the first call broke at its very end")))
    assert request.phase is Phase.AWAITING, "it does not fall back for that"
    door.ask(prompt_tokens=7)
    assert door.turn() == [], "nor is it promised room"
    ended = Finished(None, EmittedToken(1, 0.0), Usage(6, 1, 0), reason="stop")
    assert door.intake.arrived(Arrived(H1, 1, ended)) is None
    door.intake.asked(Asked(H1, 1, PEER, 1, Ask(2, 7, None), again.call))
    (reply,) = door.turn()
    assert isinstance(reply.message, Grant)
    finished = Finished(reply.message.ticket, FIRST, Usage(7, 1, 2), ())
    assert door.intake.arrived(Arrived(H1, 1, finished, again.call)) is not None
    assert len(request.output) == 2


def test_a_sender_that_died_before_its_turn_costs_its_own_request_only(door: Door) -> None:
    door.expect()
    door.ask()
    door.intake.peer_died(PEER)
    (reply,) = door.turn()
    assert reply == Reply(H1, Over(None))
    assert door.counts() == {"full": (0, 0, 0), "recurrent": (0, 0, 0)}


def test_what_a_late_request_was_promised_is_nobody_elses_before_its_sender_has_settled(door: Door) -> None:
    station = DecodeStation(door.engine, door.intake, TransferConfig())
    prompt = tuple(range(3, 83))
    for handle, deadline_s in ((H1, 5.0), (H2, None)):
        sampling = replace(spec("q").sampling, max_tokens=20)
        asked = replace(
            spec(f"q{handle}"), prompt=prompt, sampling=sampling, deadline_s=deadline_s, prefill_address="p"
        )
        station.apply(Submit(asked, handle))
        station.apply(Asked(handle, 1, PEER, 1, Ask(1, len(prompt), None)))
        station.turn()
    assert door.counts()["full"][1] > 0
    door.made.clock.now = 6.0
    for _ in range(4):
        station.turn()
        station.check()
    assert door.counts()["full"][1] == 0, "the second has no room while the first one's pages may be written"
    assert door.counts()["full"][2] > 0
    assert door.engine.status().unpromised == 1, "it waits"


def test_whom_a_refused_request_kept_out_gets_its_promise_though_nothing_else_happens(door: Door) -> None:
    station = DecodeStation(door.engine, door.intake, TransferConfig())
    prompt = tuple(range(3, 83))
    for handle, told in ((H1, 81), (H2, 80)):
        asked = replace(
            spec(f"q{handle}"),
            prompt=prompt,
            sampling=replace(spec("q").sampling, max_tokens=20),
            prefill_address="p",
        )
        station.apply(Submit(asked, handle))
        station.apply(Asked(handle, 1, PEER, 1, Ask(1, told, None)))
    replies: list[Reply] = []
    for _ in range(6):
        if (news := station.turn()) is not None:
            replies += news.replies
        if station.wait_s() != 0:
            break
    assert replies[0] == Reply(H1, Over(None))
    assert [reply.handle for reply in replies[1:] if isinstance(reply.message, Grant)] == [H2]


def test_a_sender_that_ends_an_output_whose_state_it_has_sent_is_not_heard() -> None:
    door = door_of(cached=True)
    door.expect(length=2 * PAGE + 3)
    door.ask(prompt_tokens=2 * PAGE + 3, checkpoint=2 * PAGE)
    (reply,) = door.turn()
    assert isinstance(reply.message, Grant)
    assert door.finish(reply.message.ticket)
    (request,) = door.engine.live_requests()
    assert request.expected == 2 * PAGE, "its prompt checkpoint is still to come"
    finished = Finished(None, EmittedToken(1, 0.0), Usage(6, 1, 0), reason="stop")
    assert door.intake.arrived(Arrived(H1, 1, finished)) is None
    assert [token.token_id for token in request.output] == [FIRST.token_id]
