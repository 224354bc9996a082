"""One-line mistakes in who sees a matrix state that is behind, each of which the named tests must see."""

from tests.mutants import Mutant

_DOOR = ("tests/state/test_slots.py",)
_PAIR = ("tests/handoff/test_replay.py",)
_ENGINE = ("tests/engine/test_replay_machine.py",)
_RINGS = ("tests/state/test_rings.py",)
_UPLOAD = ("tests/runner/test_upload.py",)

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
    Mutant(
        "an engine: a reader gets a state that is behind",
        "segue/state/recurrent.py",
        "            self._replay.fold(slot, self._row[slot], self._pending[slot])\n",
        "",
        _ENGINE,
    ),
    Mutant(
        "an engine: a checkpoint is copied while records are pending",
        "segue/runner/replay.py",
        "fold=row.checkpoint is not None",
        "fold=False",
        _ENGINE,
    ),
    Mutant(
        "an engine: a donated slot is not made whole",
        "segue/batch/holdings.py",
        "            self._slots.whole(slot)\n",
        "",
        _ENGINE,
    ),
    Mutant(
        "an engine: the cursor of an earlier step counts",
        "segue/kernels/recurrence/replaying.py",
        "        replay.rings.cursors.index_copy_(0, slots, replay.cursors)\n",
        "",
        _ENGINE,
    ),
    Mutant(
        "a reader folds as many records as a step last had",
        "segue/kernels/recurrence/replaying.py",
        "        cursors[slot] = count\n",
        "",
        _ENGINE,
    ),
    Mutant(
        "a full ring is folded from the sink's row",
        "segue/state/recurrent.py",
        "return Record(self._row.get(slot, SINK), cursor, folds=True)",
        "return Record(SINK, cursor, folds=True)",
        _ENGINE,
    ),
    Mutant(
        "a step's record does not count",
        "segue/state/recurrent.py",
        "self._coming[slot] = cursor + 1",
        "self._coming[slot] = max(cursor, 1)",
        _ENGINE,
    ),
    Mutant(
        "what a reader has folded stays pending",
        "segue/state/recurrent.py",
        "            self._folds_read += 1\n            self._set_pending(slot, 0)\n",
        "            self._folds_read += 1\n",
        _ENGINE,
    ),
    Mutant(
        "two slots write to one ring row",
        "segue/state/recurrent.py",
        "self._row[slot] = self._free_rows.pop()",
        "self._row[slot] = self._free_rows[-1]",
        _ENGINE,
    ),
    Mutant(
        "only the first matrix needs records",
        "segue/state/rings.py",
        "    for layer in matrices:\n",
        "    for layer in matrices[:1]:\n",
        _RINGS,
    ),
    Mutant(
        "rings of one rule are folded by another",
        "segue/state/rings.py",
        "        if rule != first:\n",
        "        if rule is None:\n",
        _RINGS,
    ),
    Mutant(
        "ring rows are sized for one layer",
        "segue/state/rings.py",
        "for record in records for tensor in record.tensors]",
        "for record in records[:1] for tensor in record.tensors]",
        _RINGS,
    ),
    Mutant(
        "uploaded arrays are looked for where they would lie without gaps",
        "segue/runner/upload.py",
        "view(torch.from_numpy(array).dtype))\n        start += _room(array)",
        "view(torch.from_numpy(array).dtype))\n        start += array.nbytes",
        _UPLOAD,
    ),
    Mutant(
        "uploaded arrays lie less aligned than tensors",
        "segue/runner/upload.py",
        "-(-array.nbytes // ALIGN_BYTES) * ALIGN_BYTES",
        "-(-array.nbytes // 8) * 8",
        _UPLOAD,
    ),
)
