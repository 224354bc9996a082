"""Who may read a recurrent slot: a typed view that says whether the slot's tensors are the whole state.

A slot whose matrix state lags behind its conv state (pending ring records) is not a state. Only the decode kernel may
see such a slot; every other reader asks for a `MaterializedSlot`, and the only way to get one is
`SlotStates.materialized`, which folds the records in first.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from segue.ids import SINK, Slot
from segue.state.replay_figures import ReplayFigures
from segue.state.spec import ComponentName
from segue.state.storage import Storage


@dataclass(frozen=True, slots=True)
class MaterializedSlot:
    """Proof that conv and matrix state of `slot` both stand at `depth`. Made by SlotStates only."""

    slot: Slot
    depth: int


class Record(NamedTuple):
    """Where a decode step keeps what it was given: as record `cursor` of ring row `row`, or, if it `folds`, nowhere:
    then ring and token go into the matrix state.
    """

    row: int
    cursor: int
    folds: bool


class Replay(Protocol):
    """Rings, and the kernel that folds them."""

    @property
    def length(self) -> int:
        """L."""

    @property
    def rows(self) -> int:
        """Ring rows, the sink's (row 0) included."""

    def fold(self, slot: Slot, row: int, count: int) -> None:
        """The first `count` records of a ring row go into the matrix states of `slot`, in the order of what was
        computed before.
        """


class SlotStates:
    """Depth and pending records of every slot; the door through which slots are read, zeroed and copied.

    A slot is zeroed only while nobody uses it: a clear that comes after a state has arrived is refused, not lost.
    """

    def __init__(self, storage: Storage, capacity: int, replay: Replay | None = None) -> None:
        self._storage = storage
        self._used = [False] * capacity
        self._depth = [0] * capacity
        # The cursor of a slot: records that the matrix state does not have yet. A slot with some has a ring row.
        self._pending = [0] * capacity
        self._replay = replay
        self._row: dict[Slot, int] = {}
        self._free_rows = list(range(1, replay.rows)) if replay is not None else []
        # What the step in flight leaves pending.
        self._coming: dict[Slot, int] = {}
        self._steps = self._folds_full = self._folds_checkpoint = self._folds_read = 0

    def start(self, slot: Slot) -> None:
        """A freshly allocated slot: zeroed at once, at depth 0, nothing pending."""
        self._use(slot, 0)
        self._storage.zero(ComponentName.RECURRENT, slot)

    def receive(self, slot: Slot, depth: int) -> None:
        """A slot that a peer has filled: it holds a whole state at `depth`, nothing pending."""
        self._use(slot, depth)

    def record(self, slot: Slot, *, fold: bool) -> Record | None:
        """Where the decode step that is about to be launched keeps its record; None where all is folded at once.

        With `fold` the step must leave a whole state.
        """
        assert self._used[slot], f"slot {slot} is decoded unused"
        assert slot not in self._coming, f"slot {slot} is decoded twice in a step"
        if self._replay is None:
            return None
        cursor = self._pending[slot]
        full = cursor == self._replay.length - 1
        self._steps += 1
        if full or fold:
            self._folds_full += full
            self._folds_checkpoint += not full
            self._coming[slot] = 0
            return Record(self._row.get(slot, SINK), cursor, folds=True)
        if slot not in self._row:
            self._row[slot] = self._free_rows.pop()
        self._coming[slot] = cursor + 1
        return Record(self._row[slot], cursor, folds=False)

    def advance(self, slot: Slot, depth: int) -> None:
        """A committed step left the conv state at `depth`, and the matrix state where its record says."""
        assert self._used[slot], f"slot {slot} moved on unused"
        assert depth > self._depth[slot], f"slot {slot} went from {self._depth[slot]} to {depth}"
        pending = self._coming.pop(slot, None)
        assert pending is not None or not self._pending[slot], f"slot {slot} was extended behind pending records"
        self._depth[slot] = depth
        self._set_pending(slot, pending or 0)

    def release(self, slot: Slot) -> None:
        """The slot goes back to its pool; nothing pending survives it."""
        assert self._used[slot], f"slot {slot} is released unused"
        self._used[slot] = False
        self._depth[slot] = 0
        self._coming.pop(slot, None)
        self._set_pending(slot, 0)

    def materialized(self, slot: Slot) -> MaterializedSlot:
        """The slot as a whole state, from now on: what is pending is folded in first."""
        assert slot not in self._coming, f"slot {slot} is read while a step moves it on"
        if self._pending[slot]:
            assert self._replay is not None
            self._replay.fold(slot, self._row[slot], self._pending[slot])
            self._folds_read += 1
            self._set_pending(slot, 0)
        return MaterializedSlot(slot, self._depth[slot])

    def whole(self, slot: Slot) -> None:
        """The slot is about to be given away: its state is whole from now on."""
        self.materialized(slot)

    def copy(self, source: MaterializedSlot, target: Slot) -> None:
        """Copies a whole state into a freshly allocated slot."""
        self._use(target, source.depth)
        self._storage.copy(ComponentName.RECURRENT, source.slot, target)

    def resume(self, checkpoint: Slot, slot: Slot) -> None:
        """A freshly allocated slot begins as a copy of a checkpoint."""
        self.copy(self.materialized(checkpoint), slot)

    def figures(self) -> ReplayFigures:
        """What came of the rings so far."""
        return ReplayFigures(
            self._steps, self._folds_full, self._folds_checkpoint, self._folds_read, sum(self._pending)
        )

    def check(self) -> None:
        """Asserts that exactly the slots with pending records have a ring row, and nobody has two."""
        behind = {slot for slot, count in enumerate(self._pending) if count}
        held = behind | {slot for slot in self._coming if slot in self._row}
        assert set(self._row) == held, f"ring rows of slots {sorted(self._row)}, records of {sorted(held)}"
        rows = [*self._row.values(), *self._free_rows]
        count = self._replay.rows - 1 if self._replay is not None else 0
        assert len(rows) == len(set(rows)) == count, "a ring row is lost or held twice"

    def _set_pending(self, slot: Slot, pending: int) -> None:
        self._pending[slot] = pending
        if not pending and (row := self._row.pop(slot, None)) is not None:
            self._free_rows.append(row)

    def _use(self, slot: Slot, depth: int) -> None:
        assert slot != SINK, "the sink is nobody's state"
        assert not self._used[slot], f"slot {slot} holds a state already"
        assert not self._pending[slot], f"slot {slot} has records of another state"
        self._used[slot] = True
        self._depth[slot] = depth
