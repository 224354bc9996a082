"""What rank 0 does and has the other ranks of its worker do with it."""

import numpy as np
import torch
from torch import Tensor

from segue.ids import Slot
from segue.runner.context import Model, StepContext
from segue.runner.ranks.crew import Crew
from segue.runner.ranks.orders import Order, encode_step
from segue.state.recurrent import Replay
from segue.state.spec import ModelState
from segue.state.storage import Storage

_STEP_S = 600.0
"""What devices may take for a step. Whether a rank lives is known long before."""


class LedModel:
    """Rank 0's part of a model (segue.runner.context.Model).

    When a forward returns, every rank has written what it has of the state. On the CPU that is so because the last sum
    takes all of them. On CUDA devices it is not: sums are done in the order of each device, and no host waits for them.
    Nothing orders what two processes have a device do, so it is settled on both sides: rank 0's writes (zeroed and
    copied units, what came from a peer or from the host) before the others begin, theirs before rank 0 reads on.
    """

    def __init__(self, ours: Model, crew: Crew) -> None:
        self._ours, self._crew = ours, crew

    @property
    def state(self) -> ModelState:
        return self._ours.state

    @property
    def device(self) -> torch.device:
        return self._ours.device

    @property
    def vocab_size(self) -> int:
        return self._ours.vocab_size

    @property
    def max_position(self) -> int:
        return self._ours.max_position

    def forward(self, step: StepContext) -> Tensor:
        """Raises RankLost and RankFailed."""
        order = encode_step(step)
        step.storage.regions.settle()
        self._crew.broadcast(Order.COMPUTE, order)
        logits = self._ours.forward(step)
        if step.storage.regions.cuda_devices:
            self._crew.broadcast(Order.SETTLE)
            self._crew.wait_done(Order.SETTLE, _STEP_S)
        return logits


class LedReplay:
    """Rank 0's rings (segue.state.recurrent.Replay); each rank has the records of its own head groups."""

    def __init__(self, ours: Replay, storage: Storage, crew: Crew) -> None:
        self._ours, self._storage, self._crew = ours, storage, crew

    @property
    def length(self) -> int:
        return self._ours.length

    @property
    def rows(self) -> int:
        return self._ours.rows

    def fold(self, slot: Slot, row: int, count: int) -> None:
        """Raises RankLost and RankFailed."""
        self._storage.regions.settle()
        self._crew.broadcast(Order.FOLD, np.array([slot, row, count]))
        self._ours.fold(slot, row, count)
        # Rank 0 is about to read what every rank has of the slot.
        self._crew.wait_done(Order.FOLD)
