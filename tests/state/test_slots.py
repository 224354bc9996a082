"""A slot whose matrix state is behind is whole for whoever reads it, and holds a ring row only while it is behind."""

from dataclasses import dataclass, field

import pytest

from segue.ids import SINK, Slot
from segue.state.recurrent import Record, SlotStates
from segue.state.replay_figures import ReplayFigures
from tests.state.test_layout import build

LENGTH = 4


@dataclass
class Folds:
    """Rings of which only is noted what is folded."""

    length: int = LENGTH
    rows: int = 3
    seen: list[tuple[int, int, int]] = field(default_factory=list)

    def fold(self, slot: Slot, row: int, count: int) -> None:
        self.seen.append((slot, row, count))


def slots_with(folds: Folds) -> SlotStates:
    _, storage = build(4)
    return SlotStates(storage, 5, folds)


def decode(slots: SlotStates, slot: Slot, depth: int, *, fold: bool = False) -> Record:
    record = slots.record(slot, fold=fold)
    assert record is not None
    slots.advance(slot, depth)
    slots.check()
    return record


def test_the_ring_is_folded_when_it_is_full_and_the_cursor_starts_again() -> None:
    slots = slots_with(Folds())
    slots.start(Slot(1))
    seen = [decode(slots, Slot(1), depth) for depth in range(1, 10)]
    assert [record.cursor for record in seen] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert [record.folds for record in seen] == [False, False, False, True] * 2 + [False]
    assert slots.figures() == ReplayFigures(steps=9, folds_full=2, pending=1)


def test_a_checkpoint_step_leaves_a_whole_state() -> None:
    folds = Folds()
    slots = slots_with(folds)
    slots.start(Slot(1))
    decode(slots, Slot(1), 1)
    record = decode(slots, Slot(1), 2, fold=True)
    assert (record.cursor, record.folds) == (1, True)
    assert slots.figures() == ReplayFigures(steps=2, folds_checkpoint=1)
    assert decode(slots, Slot(1), 3, fold=True) == Record(SINK, 0, folds=True)
    slots.copy(slots.materialized(Slot(1)), Slot(2))
    assert not folds.seen


def test_whoever_reads_a_slot_finds_it_whole() -> None:
    folds = Folds()
    slots = slots_with(folds)
    slots.start(Slot(1))
    row = decode(slots, Slot(1), 1).row
    decode(slots, Slot(1), 2)
    slots.copy(slots.materialized(Slot(1)), Slot(2))
    assert folds.seen == [(1, row, 2)]
    assert slots.materialized(Slot(2)).depth == 2
    assert slots.figures() == ReplayFigures(steps=2, folds_read=1)
    slots.whole(Slot(1))
    assert folds.seen == [(1, row, 2)]
    assert decode(slots, Slot(1), 3).cursor == 0


def test_nothing_pending_survives_a_slot() -> None:
    slots = slots_with(Folds())
    slots.start(Slot(1))
    decode(slots, Slot(1), 1)
    slots.release(Slot(1))
    slots.check()
    slots.receive(Slot(1), 40)
    assert slots.materialized(Slot(1)).depth == 40
    assert decode(slots, Slot(1), 41).cursor == 0


def test_a_slot_that_is_released_under_a_step_gives_its_ring_row_back() -> None:
    slots = slots_with(Folds())
    slots.start(Slot(1))
    slots.record(Slot(1), fold=False)
    slots.release(Slot(1))
    slots.check()


def test_rows_are_of_one_slot_each() -> None:
    slots = slots_with(Folds())
    for slot in (Slot(1), Slot(2)):
        slots.start(slot)
    rows = {decode(slots, slot, 1).row for slot in (Slot(1), Slot(2))}
    assert len(rows) == 2
    assert SINK not in rows


def test_a_state_that_a_step_moves_on_is_not_read_meanwhile() -> None:
    slots = slots_with(Folds())
    slots.start(Slot(1))
    slots.record(Slot(1), fold=False)
    with pytest.raises(AssertionError, match="while a step moves it on"):
        slots.materialized(Slot(1))


def test_prompt_tokens_do_not_follow_on_pending_records() -> None:
    slots = slots_with(Folds())
    slots.start(Slot(1))
    decode(slots, Slot(1), 1)
    with pytest.raises(AssertionError, match="extended behind pending records"):
        slots.advance(Slot(1), 5)


def test_without_rings_every_step_leaves_a_whole_state() -> None:
    _, storage = build(4)
    slots = SlotStates(storage, 5)
    slots.start(Slot(1))
    assert slots.record(Slot(1), fold=False) is None
    slots.advance(Slot(1), 1)
    assert slots.materialized(Slot(1)).depth == 1
    slots.check()
