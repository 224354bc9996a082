"""A model of one recurrent layer over real slots and rings, and in float64 what the state after any tokens is.

It runs behind a scripted engine, whose pools and requests it is: tokens come from the script, nothing is read of pages.
"""

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from segue.batch.step import StepPlan
from segue.ids import Slot
from segue.kernels.batched import BatchedKernels
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.interface import DeltaMemory
from segue.kernels.recurrence.memory import RING_DECAY, RING_DELTA, RING_KEY, RecurrentShape
from segue.kernels.recurrence.replaying import RingFolds
from segue.kernels.recurrence.rule import Rule
from segue.runner.context import StepContext
from segue.runner.replay import StepReplay
from segue.runner.runner import Runner
from segue.runner.sampler import Sampler
from segue.state.layout import Shard, layouts
from segue.state.recurrent import SlotStates
from segue.state.rings import Rings
from segue.state.spec import MATRIX, ComponentName, DType, ModelState
from segue.state.storage import Storage

Tokens: TypeAlias = tuple[int, ...]
Doubles: TypeAlias = npt.NDArray[np.float64]

VOCAB = 100
LAYER = 0
SHAPE = RecurrentShape(rule=Rule.GATED_DELTA, groups=1, heads=1, key_dim=3, value_dim=2)
CPU = torch.device("cpu")
# fp32 sums along some sixty tokens, of numbers about 1; over thousands of lives no error reached 5e-7.
ERROR_MAX = 3e-6


class DeltaModel:
    """A segue.runner.context.Model. What a token gives the layer is random, and always the same for that token."""

    def __init__(self) -> None:
        self.state = ModelState.of([SHAPE.state(LAYER)], [SHAPE.record(LAYER, DType.FLOAT32)])
        self.device, self.vocab_size, self.max_position = CPU, VOCAB, 128
        random = torch.Generator().manual_seed(6)
        self.query_key = normalize(torch.randn(VOCAB, 1, 2, SHAPE.key_dim, generator=random), dim=-1)
        self.value = torch.randn(VOCAB, 1, 1, SHAPE.value_dim, generator=random)
        self.log_decay = -0.2 * torch.rand(VOCAB, 1, 1, generator=random)
        self.beta = torch.rand(VOCAB, 1, 1, generator=random)
        self._kernels = BatchedKernels(torch.float32, CPU)

    def forward(self, step: StepContext) -> Tensor:
        tokens = step.token_ids
        inputs = DeltaInputs(self.query_key[tokens], self.value[tokens], self.log_decay[tokens], self.beta[tokens])
        self._kernels.begin(step).delta(DeltaMemory(LAYER), inputs)
        return torch.zeros(len(step.logit_rows), VOCAB)


class ExactStates:
    """The plain recurrence in float64. Every state is kept: tokens of scripts are few."""

    def __init__(self, model: DeltaModel) -> None:
        self._keys: Doubles = model.query_key[:, 0, 1].double().numpy()
        self._values: Doubles = model.value[:, 0, 0].double().numpy()
        self._decays: Doubles = model.log_decay[:, 0, 0].double().exp().numpy()
        self._betas: Doubles = model.beta[:, 0, 0].double().numpy()
        self._known: dict[Tokens, Doubles] = {(): np.zeros((SHAPE.key_dim, SHAPE.value_dim))}

    def after(self, tokens: Tokens) -> Doubles:
        """[key dim, value dim]"""
        known = len(tokens)
        while tokens[:known] not in self._known:
            known -= 1
        state = self._known[tokens[:known]]
        for count, token in enumerate(tokens[known:], known + 1):
            key, decayed = self._keys[token], self._decays[token] * state
            correction = self._betas[token] * (self._values[token] - key @ decayed)
            state = self._known[tokens[:count]] = decayed + np.outer(key, correction)
        return state


MODEL = DeltaModel()
EXACT = ExactStates(MODEL)


class DeltaStates:
    """The storage of that layer, NaN until a slot is started or received, and the door to its slots."""

    def __init__(self, slot_count: int, length: int, ring_rows: int) -> None:
        """A matrix is written every `length` steps; both counts are with the sink."""
        state = MODEL.state
        self.storage = Storage(layouts(state, 1, Shard()), {ComponentName.RECURRENT: slot_count}, CPU)
        self._matrices = self.storage.view(LAYER, MATRIX)
        self._matrices.fill_(float("nan"))
        self._rings = Rings(state.records, length, ring_rows, slot_count, CPU)
        for name in (RING_DELTA, RING_KEY, RING_DECAY):
            self._rings.view(LAYER, name).fill_(float("nan"))
        self.slots = SlotStates(self.storage, slot_count, RingFolds(self._rings, self.storage, state.records))
        replay = StepReplay(self.slots, self._rings, CPU)
        self._runner = Runner(MODEL, self.storage, 1, Sampler((), VOCAB), replay)

    def compute(self, plan: StepPlan) -> None:
        """The plan's rows, as a worker does it."""
        self._runner.launch(plan)

    def save(self, slot: Slot) -> Tensor:
        """A copy of the whole state, asked for at the door."""
        return self._matrices[self.slots.materialized(slot).slot].clone()

    def fill(self, slot: Slot, matrix: Tensor) -> None:
        """What was saved, or comes from elsewhere."""
        self._matrices[slot] = matrix

    def arrive(self, slot: Slot, tokens: Tokens) -> None:
        """Another worker's state after these tokens."""
        self.fill(slot, torch.from_numpy(EXACT.after(tokens)).float())

    def require(self, wanted: Mapping[Slot, Tokens]) -> None:
        """Asserts that each slot, with what is pending, is the state after its tokens. Nothing is folded for that."""
        for slot, tokens in wanted.items():
            error = np.abs(self._whole(slot) - EXACT.after(tokens)).max()
            assert error < ERROR_MAX, f"slot {slot} is {error} off what {len(tokens)} tokens leave"

    @property
    def behind(self) -> set[Slot]:
        """Slots with records that their matrices do not have."""
        return {Slot(slot) for slot in range(self.storage.units(ComponentName.RECURRENT)) if self._count(Slot(slot))}

    def _count(self, slot: Slot) -> int:
        # What a step in flight leaves pending is in the ring once it was launched.
        return self.slots._coming.get(slot, self.slots._pending[slot])

    def _whole(self, slot: Slot) -> Doubles:
        count, state = self._count(slot), _doubles(self._matrices[slot, 0, 0])
        if not count:
            return state
        row = self.slots._row[slot]
        sums, keys, corrections = (
            _doubles(self._rings.view(LAYER, name)[row, 0, :count].view(count, -1))
            for name in (RING_DECAY, RING_KEY, RING_DELTA)
        )
        weighted: Doubles = keys * np.exp(sums[-1] - sums)
        whole: Doubles = np.exp(sums[-1]) * state + weighted.T @ corrections
        return whole


def _doubles(tensor: Tensor) -> Doubles:
    found: Doubles = tensor.numpy().astype(np.float64)
    return found
