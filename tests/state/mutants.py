"""One-line mistakes in who sees a matrix state that is behind, each of which the named tests must see."""

from tests.mutants import Mutant

_DOOR = ("tests/state/test_slots.py",)
_PAIR = ("tests/handoff/test_replay.py",)

MUTANTS = (
    Mutant(
        "a reader gets a state that is behind",
        "segue/state/recurrent.py",
        "            self._replay.fold(slot, self._row[slot], self._pending[slot])\n",
        "",
        _PAIR,
    ),
    Mutant(
        "a checkpoint is copied while records are pending",
        "segue/runner/replay.py",
        "fold=row.checkpoint is not None",
        "fold=False",
        _PAIR,
    ),
    Mutant(
        "a donated slot is not made whole",
        "segue/batch/holdings.py",
        "            self._slots.whole(slot)\n",
        "",
        _PAIR,
    ),
    Mutant(
        "the cursor of an earlier step counts",
        "segue/kernels/recurrence/replaying.py",
        "        replay.rings.cursors.index_copy_(0, slots, replay.cursors)\n",
        "",
        _PAIR,
    ),
    Mutant(
        "a step without room in the ring is not folded",
        "segue/state/recurrent.py",
        "full = cursor == self._replay.length - 1",
        "full = cursor == self._replay.length",
        _DOOR,
    ),
    Mutant(
        "records outlive their slot",
        "segue/state/recurrent.py",
        "        self._coming.pop(slot, None)\n        self._set_pending(slot, 0)\n",
        "        self._coming.pop(slot, None)\n",
        _DOOR,
    ),
    Mutant(
        "a step that folded leaves its cursor",
        "segue/state/recurrent.py",
        "self._set_pending(slot, pending or 0)",
        "self._set_pending(slot, pending or self._pending[slot])",
        _DOOR,
    ),
    Mutant(
        "a slot that is whole keeps its ring row",
        "segue/state/recurrent.py",
        "        if not pending and (row := self._row.pop(slot, None)) is not None:\n",
        "        if (row := self._row.pop(slot, None) if not pending and slot == 0 else None) is not None:\n",
        _DOOR,
    ),
)
