"""Recurrent layers whose matrices may be behind: where each keeps matrix and ring, a step of them, their folding."""

from collections.abc import Sequence

import torch
from torch import Tensor

from segue.ids import Slot
from segue.kernels.memory import MemoryViews
from segue.kernels.recurrence import batched
from segue.kernels.recurrence.batched import StepRows
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RING_DECAY, RING_DELTA, RING_KEY, RecurrentMemory, Ring
from segue.kernels.recurrence.rule import Rule
from segue.kernels.scratch import Scratch
from segue.runner.context import ReplayRows
from segue.state.rings import Rings
from segue.state.spec import MATRIX, LayerRecord
from segue.state.storage import Storage


class ReplayedStep:
    """The decode rows of one step; what its layers share is worked out once."""

    def __init__(self, replay: ReplayRows, slots: Tensor, memory: MemoryViews, scratch: Scratch) -> None:
        """`slots` are those of the decode rows."""
        self._replay, self._slots = replay, slots
        self._memory, self._scratch = memory, scratch
        self._rows: StepRows | None = None
        # The host knows the cursors and says them anew in every step: who frees or copies a slot need not do so here.
        replay.rings.cursors.index_copy_(0, slots, replay.cursors)

    def delta(self, layer: int, inputs: RecurrentInputs) -> Tensor:
        """The gated delta rule of one layer: reads like inputs.value; matrix or ring are moved on."""
        replay, rule, memory = self._replay, Rule.GATED_DELTA, layer_memory(self._memory, self._replay.rings, layer)
        if inputs.value.is_cuda:
            # Here, because only CUDA builds of torch bring Triton.
            from segue.kernels.recurrence import launch

            return launch.decode(rule, inputs, memory, self._slots, replay.rows, replay.rings.cursors, replay.folds)
        if self._rows is None:
            self._rows = StepRows.of(self._slots, replay.rows, replay.rings.cursors, replay.folds, memory)
        return batched.step(rule, inputs, memory, self._rows, self._scratch)


class RingFolds:
    """Folds rings for whoever reads a slot (segue.state.recurrent.Replay)."""

    def __init__(self, rings: Rings, storage: Storage, records: Sequence[LayerRecord]) -> None:
        """`records` are of one rule (segue.state.rings.require_replay)."""
        self._rings = rings
        views = MemoryViews(storage)
        self._layers = [layer_memory(views, rings, record.layer) for record in records]
        (self._rule,) = {Rule(record.rule) for record in records}

    @property
    def length(self) -> int:
        return self._rings.length

    @property
    def rows(self) -> int:
        return self._rings.rows

    def fold(self, slot: Slot, row: int, count: int) -> None:
        cursors = self._rings.cursors
        cursors[slot] = count
        slots, rows = (torch.tensor([number], device=cursors.device) for number in (slot, row))
        if cursors.is_cuda:
            # Here, because only CUDA builds of torch bring Triton.
            from segue.kernels.recurrence import launch

            launch.materialize(self._rule, self._layers, slots, rows, cursors)
        else:
            batched.materialize(self._rule, self._layers, slots, rows, cursors)


def layer_memory(views: MemoryViews, rings: Rings, layer: int) -> RecurrentMemory:
    """Matrices and ring of one layer."""
    ring = Ring(*(rings.view(layer, name) for name in (RING_DELTA, RING_KEY, RING_DECAY)))
    return RecurrentMemory(views.get(layer, MATRIX), ring)
