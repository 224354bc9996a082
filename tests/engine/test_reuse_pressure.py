"""Reuse where memory is short or an end comes at a bad moment; real policy, scripted runner."""

from collections.abc import Sequence

import pytest

from segue.batch.role import Role
from segue.handoff import Part, UnitRow
from segue.ids import Handle
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken
from tests.support.policies import Rig, rig, spec

PAGE = 4
TOKEN = EmittedToken(9, 0.0)


def test_a_step_that_overtook_the_end_of_its_request_leaves_no_checkpoint() -> None:
    made = rig(page_tokens=PAGE, slots=9, cached=True)
    assert made.tree is not None
    made.engine.submit(spec("a", 7, max_tokens=20, ignore_eos=True), Handle(1))
    made.step()
    made.step()
    # The computed length is on the checkpoint grid now, and the step in flight moves the slot past it.
    record = made.engine.launch()
    assert record is not None
    assert record.plan.rows[0].start % (2 * PAGE) == 0
    taken = made.tree.counts.taken
    made.engine.finish(Handle(1), 1, record.plan.rows[0].start - 7 + 1)
    made.engine.commit(record)
    made.engine.check()
    assert made.tree.counts.taken == taken


def test_an_end_below_the_computed_length_donates_no_state() -> None:
    made = rig(page_tokens=PAGE, slots=9, cached=True)
    assert made.tree is not None
    made.engine.submit(spec("a", 7, max_tokens=20, ignore_eos=True), Handle(1))
    (request,) = made.engine.live_requests()
    while request.computed < 24:
        made.step()
    assert request.computed % (2 * PAGE) == 0
    taken = made.tree.counts.taken
    made.engine.finish(Handle(1), 1, 3)
    made.engine.check()
    assert made.tree.counts.taken == taken


@pytest.mark.parametrize("window", [6, 31, 40])
def test_a_second_turn_is_granted_in_a_pool_of_just_the_planned_size(window: int) -> None:
    """The tail with the headroom, and the window of one checkpoint: the first turn's gives way to the second's."""
    pages = page_count(window + 20, PAGE) + 1 + page_count(window, PAGE) + 1
    made = rig(
        role=Role.DECODE,
        page_tokens=PAGE,
        window=window,
        window_pages=pages,
        pages=64,
        slots=3,
        max_running=1,
        max_len=240,
        cached=True,
    )
    assert made.tree is not None
    first_turn = [3 + i % 50 for i in range(60)]
    second_turn = [*first_turn, TOKEN.token_id, *[7] * 29, *[3 + i % 40 for i in range(70)]]
    for turn, prompt in enumerate((first_turn, second_turn), 1):
        handle, length = Handle(turn), len(prompt)
        made.engine.expect(spec(f"q{turn}", prompt, max_tokens=30, ignore_eos=True), handle)
        made.engine.ask(handle, 1)
        assert made.engine.launch() is None
        (request,) = made.engine.take_promised()
        offered = (length - 1) // (2 * PAGE) * 2 * PAGE
        held = made.engine.holdings.hold(request)
        wanted = made.engine.holdings.wanted_checkpoint(request, offered)
        assert wanted == offered
        assert held == (0 if turn == 1 else 88)
        first, reach = first_window_page(length, window, PAGE), page_count(length + 20, PAGE)
        below = first_window_page(offered, window, PAGE)
        pieces = [
            (Part.STATE, ComponentName.FULL, held // PAGE, reach),
            (Part.STATE, ComponentName.WINDOW, first, reach),
            (Part.STATE, ComponentName.RECURRENT, 0, 1),
            (Part.CHECKPOINT, ComponentName.WINDOW, below, min(first, offered // PAGE)),
            (Part.CHECKPOINT, ComponentName.RECURRENT, 0, 1),
        ]
        rows = [
            UnitRow(part, name, start, tuple(made.pools[name].alloc(stop - start, Owner.RESERVED)))
            for part, name, start, stop in pieces
            if start < stop
        ]
        made.contents.arrive(request, [row for row in rows if row.part is Part.STATE], length)
        made.contents.arrive(request, [row for row in rows if row.part is Part.CHECKPOINT], offered)
        made.engine.receive(handle, 1, _taken(made, rows, Part.STATE), TOKEN, 0, wanted)
        # What follows the state comes when decoding has gone on for a while, and needs the window below it.
        for _ in range(3):
            made.step()
        taken = made.tree.counts.taken
        made.engine.receive_checkpoint(handle, _taken(made, rows, Part.CHECKPOINT))
        assert made.tree.counts.taken == taken + 1
        while not made.engine.idle:
            made.step()
    made.require_whole()


def _taken(made: Rig, rows: Sequence[UnitRow], part: Part) -> list[UnitRow]:
    """The rows of a part, which has arrived: they are held now."""
    arrived = [row for row in rows if row.part is part]
    for row in arrived:
        made.pools[row.component].move([unit for unit in row.units if unit is not None], Owner.RESERVED, Owner.HELD)
    return arrived
