"""A whole handoff within one process, over copies: what the policies, blocks and digests make of each other."""

import time
from dataclasses import replace

import pytest

from kv_transfer.arena_map import map_arena
from kv_transfer.digest import digest_contents, zero_tail
from kv_transfer.local_link import LocalLink
from kv_transfer.plan import Side, make_plan
from kv_transfer.receiver import Receiver
from kv_transfer.reservations import Reservations
from kv_transfer.sender import Outgoing, Push, Sender
from kv_transfer.sending import PartDone, Sending, TicketSettled
from segue.errors import DigestMismatch, TransferRefused
from segue.handoff import Part, Terms, UnitRow
from segue.ids import RequestId, WorkerId
from segue.state.needs import page_count
from tests.support.handoff_state import (
    FULL,
    RECURRENT,
    WINDOW,
    make_storage,
    model_state,
    shows,
    take_row,
    write_pages,
    write_slot,
)

WORKER = WorkerId("w")


class Pair:
    """A sender that has computed `n` tokens, and a receiver that holds the first `held` of them."""

    def __init__(self, terms: Terms, page_tokens: int, window: int) -> None:
        self.terms, self.page_tokens, self.window = terms, page_tokens, window
        n = terms.prompt_tokens
        self.layouts, self.source, pools = make_storage(model_state(window), page_tokens, 40)
        _, self.target, self.pools = make_storage(model_state(window), page_tokens, 30)
        side = Side(self.layouts, page_tokens, window)
        self.reservations = Reservations(self.pools, time.monotonic, lease_s=30.0)
        self.receiver = Receiver(self.reservations, self.target, side)
        self.rows = [take_row(pools, Part.STATE, name, 0, page_count(n, page_tokens)) for name in (FULL, WINDOW)]
        for row in self.rows:
            write_pages(self.source, row, "r", 0, n)
            zero_tail(self.source, row.component, row.units[-1] or 0, (n - 1) % page_tokens + 1)
        self.rows.append(replace(self.rows[1], part=Part.CHECKPOINT))
        for part, depth in ((Part.STATE, n), (Part.CHECKPOINT, terms.checkpoint or 1)):
            slot = take_row(pools, part, RECURRENT, 0, 1)
            write_slot(self.source, slot.units[0] or 0, "r", depth)
            self.rows.append(slot)
        self.incoming = self.receiver.grant(WORKER, 1, RequestId("r"), 1, 1, terms, headroom_tokens=5)
        self.plan = make_plan(terms, side, side)
        self.sending = Sending[Push](time.monotonic, in_flight_max=2)
        self.sender = Sender(self.sending, lambda: None)

    def outgoing(self) -> Outgoing:
        link = LocalLink(self.source.regions, self.target.regions)
        return Outgoing(self.incoming.grant, self.plan, link, map_arena(self.source), map_arena(self.target))

    def send(self, chunk: int) -> None:
        """Pushes everything, chunk by chunk."""
        outgoing, n, ticket = self.outgoing(), self.terms.prompt_tokens, self.incoming.grant.ticket
        parts = {row.part for row in self.incoming.grant.rows}
        self.sending.granted(ticket, self.sending.ask(), 30.0, parts)
        ends = [*range(chunk, n, chunk), n]
        for start, end in zip([0, *ends], ends, strict=False):
            self.sending.push(ticket, Part.STATE, outgoing.pushes(self.plan.chunk(start, end), self.rows))
        self.sending.end(ticket, Part.STATE)
        if Part.CHECKPOINT in parts:
            self.sending.push(ticket, Part.CHECKPOINT, outgoing.pushes(self.plan.checkpoint(), self.rows))
            self.sending.end(ticket, Part.CHECKPOINT)
        expected = [PartDone(ticket, part) for part in Part if part in parts]
        assert self.sender.pump() == [*expected, TicketSettled(ticket)]

    def accept(self, part: Part) -> tuple[UnitRow, ...]:
        own = [row for row in self.rows if row.part is part]
        rows = self.receiver.accept(self.incoming, part, digest_contents(self.source, own, self.plan.contents(part)))
        assert rows is not None
        return rows


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize(
    ("terms", "page_tokens", "window"),
    [
        (Terms(1, 0), 4, 6),
        (Terms(4, 4), 4, 6),
        (Terms(13, 0, 12), 1, 6),
        (Terms(13, 4, 8), 4, 2),
        (Terms(21, 8, 12), 4, 6),
        (Terms(21, 0, 4), 4, 6),
        (Terms(17, 16, 16), 16, 40),
        (Terms(5, 0), 16, 1),
    ],
)
def test_the_receiver_ends_with_the_senders_state(terms: Terms, page_tokens: int, window: int, chunk: int) -> None:
    pair = Pair(terms, page_tokens, window)
    pair.send(chunk)
    n = terms.prompt_tokens
    for row in pair.accept(Part.STATE):
        start = max(row.first * page_tokens, n - window if row.component is WINDOW else 0)
        assert shows(pair.target, row, "r", min(start, n), n)
    if pair.plan.checkpoint():
        for row in pair.accept(Part.CHECKPOINT):
            depth = terms.checkpoint or 0
            start = max(row.first * page_tokens, depth - window)
            stop = depth if row.component is RECURRENT else min(depth, row.stop * page_tokens)
            assert shows(pair.target, row, "r", start, stop)
    pair.reservations.check()
    assert not any(pool.counts().reserved for pool in pair.pools.values())


def test_no_other_unit_of_the_receiver_changes() -> None:
    pair = Pair(Terms(21, 8, 12), 4, 6)
    granted = {(row.component, unit) for row in pair.incoming.grant.rows for unit in row.units}
    before = pair.target.arena.clone()
    pair.send(5)
    for layout in pair.layouts:
        for unit in range(30):
            if (layout.component, unit) not in granted:
                now = pair.target.unit_bytes(layout.component, unit)
                start = int(now.storage_offset())
                assert bool((now == before[start : start + layout.unit_bytes]).all()), (layout.component, unit)


def test_nothing_of_another_tenant_is_sent_in_the_last_page() -> None:
    pair = Pair(Terms(13, 0), 4, 6)
    pair.send(5)
    rows = {row.component: row for row in pair.accept(Part.STATE)}
    page = rows[FULL].units[3]
    assert page is not None
    assert not pair.target.view(1, "k")[page, :, 1:].any()


def test_a_byte_that_changed_on_the_way_is_found_and_the_units_come_back() -> None:
    pair = Pair(Terms(13, 0, 8), 4, 6)
    pair.send(5)
    row = next(row for row in pair.incoming.grant.rows if row.component is FULL)
    pair.target.unit_bytes(FULL, row.units[1] or 0)[3] += 1
    with pytest.raises(DigestMismatch, match=r"full positions \[0, 13\)"):
        pair.accept(Part.STATE)
    assert pair.receiver.accept(pair.incoming, Part.STATE, ()) is None
    pair.reservations.settled(pair.incoming.grant.ticket)
    assert all(pool.free_count == pool.usable_count for pool in pair.pools.values())


@pytest.mark.parametrize("tensor", ["k", "k_scale", "v", "v_scale"])
def test_a_tensor_of_a_page_that_did_not_arrive_is_missed(tensor: str) -> None:
    pair = Pair(Terms(13, 0, 8), 4, 6)
    pair.send(5)
    row = next(row for row in pair.incoming.grant.rows if row.component is FULL)
    pair.target.view(3, tensor)[row.units[2]].zero_()
    with pytest.raises(DigestMismatch, match=r"full positions \[0, 13\)"):
        pair.accept(Part.STATE)


def test_another_plan_is_refused_before_the_first_byte() -> None:
    pair = Pair(Terms(13, 0), 4, 6)
    pair.plan = replace(pair.plan, terms=Terms(13, 4))
    with pytest.raises(TransferRefused, match=r"the receiver's plan is .*, ours "):
        pair.outgoing()


def test_a_grant_that_lacks_a_page_is_refused_before_the_first_byte() -> None:
    pair = Pair(Terms(13, 0), 4, 6)
    grant = pair.incoming.grant
    short = replace(grant.rows[0], units=grant.rows[0].units[:2])
    pair.incoming = replace(pair.incoming, grant=replace(grant, rows=(short, *grant.rows[1:])))
    with pytest.raises(TransferRefused, match=r"full pages \[0, 4\) of the state are to travel"):
        pair.outgoing()
