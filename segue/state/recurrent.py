"""Who may read a recurrent slot: a typed view that says whether the slot's tensors are the whole state.

A slot whose matrix state lags behind its conv state (pending ring records) is not a state. Only the decode kernel may
see such a slot; every other reader asks for a `MaterializedSlot`, and the only way to get one is
`SlotStates.materialized`.
"""

from dataclasses import dataclass

from segue.ids import SINK, Slot
from segue.state.spec import ComponentName
from segue.state.storage import Storage


@dataclass(frozen=True, slots=True)
class MaterializedSlot:
    """Proof that conv and matrix state of `slot` both stand at `depth`. Made by SlotStates only."""

    slot: Slot
    depth: int


class SlotStates:
    """Depth and pending records of every slot; the door through which slots are read, zeroed and copied.

    A slot is zeroed only while nobody uses it: a clear that comes after a state has arrived is refused, not lost.
    """

    def __init__(self, storage: Storage, capacity: int) -> None:
        self._storage = storage
        self._used = [False] * capacity
        self._depth = [0] * capacity
        self._pending = [0] * capacity

    def start(self, slot: Slot) -> None:
        """A freshly allocated slot: zeroed at once, at depth 0, nothing pending."""
        self._use(slot, 0)
        self._storage.zero(ComponentName.RECURRENT, slot)

    def receive(self, slot: Slot, depth: int) -> None:
        """A slot that a peer has filled: it holds a whole state at `depth`, nothing pending."""
        self._use(slot, depth)

    def advance(self, slot: Slot, depth: int, pending: int) -> None:
        """A committed step left conv state at `depth` and `pending` records not yet folded into the matrix state."""
        assert self._used[slot], f"slot {slot} moved on unused"
        assert depth > self._depth[slot], f"slot {slot} went from {self._depth[slot]} to {depth}"
        self._depth[slot], self._pending[slot] = depth, pending

    def release(self, slot: Slot) -> None:
        """The slot goes back to its pool; nothing pending survives it."""
        assert self._used[slot], f"slot {slot} is released unused"
        self._used[slot] = False
        self._depth[slot] = self._pending[slot] = 0

    def materialized(self, slot: Slot) -> MaterializedSlot:
        """The slot as a whole state.

        Asserts that nothing is pending: the decode kernel folds the ring on request first.
        """
        assert self._pending[slot] == 0, f"slot {slot} has {self._pending[slot]} pending records"
        return MaterializedSlot(slot, self._depth[slot])

    def copy(self, source: MaterializedSlot, target: Slot) -> None:
        """Copies a whole state into a freshly allocated slot."""
        self._use(target, source.depth)
        self._storage.copy(ComponentName.RECURRENT, source.slot, target)

    def resume(self, checkpoint: Slot, slot: Slot) -> None:
        """A freshly allocated slot begins as a copy of a checkpoint."""
        self.copy(self.materialized(checkpoint), slot)

    def _use(self, slot: Slot, depth: int) -> None:
        assert slot != SINK, "the sink is nobody's state"
        assert not self._used[slot], f"slot {slot} holds a state already"
        self._used[slot] = True
        self._depth[slot], self._pending[slot] = depth, 0
