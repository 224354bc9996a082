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


class LedModel:
    """Rank 0's part of a model (segue.runner.context.Model).

    When a forward returns, every rank has written what it has of the state: the last sum takes all of them.
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
        self._crew.broadcast(Order.COMPUTE, encode_step(step))
        return self._ours.forward(step)


class LedReplay:
    """Rank 0's rings (segue.state.recurrent.Replay); each rank has the records of its own head groups."""

    def __init__(self, ours: Replay, crew: Crew) -> None:
        self._ours, self._crew = ours, crew

    @property
    def length(self) -> int:
        return self._ours.length

    @property
    def rows(self) -> int:
        return self._ours.rows

    def fold(self, slot: Slot, row: int, count: int) -> None:
        """Raises RankLost and RankFailed."""
        self._crew.broadcast(Order.FOLD, np.array([slot, row, count]))
        self._ours.fold(slot, row, count)
        # Rank 0 is about to read what every rank has of the slot.
        self._crew.wait_done(Order.FOLD)
