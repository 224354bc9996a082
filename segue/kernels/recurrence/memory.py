"""Where a recurrent layer keeps its matrices, and the records of the steps since each was written."""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.memory import StateMemory
from segue.kernels.recurrence.rule import Rule
from segue.state.spec import MATRIX, ComponentName, DType, LayerRecord, StateTensor
from segue.state.storage import TORCH_DTYPE

RING_DELTA, RING_KEY, RING_DECAY = "ring_delta", "ring_key", "ring_decay"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentShape:
    """`heads` counts value heads per group."""

    rule: Rule
    groups: int
    heads: int
    key_dim: int
    value_dim: int

    def state(self, layer: int) -> StateTensor:
        """The matrix [head, key, value], in fp32."""
        shape = (self.heads, self.key_dim, self.value_dim)
        return StateTensor(layer, MATRIX, ComponentName.RECURRENT, self.groups, shape, DType.FLOAT32)

    def record(self, layer: int, dtype: DType) -> LayerRecord:
        """What a replayed step adds to a ring: its correction d, its key, and g, the log decays.

        `dtype` is that of d and the key. g is fp32 and summed from the ring's start, so that the decay between two
        records is one difference.
        """
        decay = (self.heads, self.key_dim) if self.rule.vector_decay else (self.heads,)
        parts: dict[str, tuple[tuple[int, ...], DType]] = {
            RING_DELTA: ((self.heads, self.value_dim), dtype),
            RING_KEY: ((self.key_dim,), dtype),
            RING_DECAY: (decay, DType.FLOAT32),
        }
        tensors = [
            StateTensor(layer, name, ComponentName.RECURRENT, self.groups, shape, part)
            for name, (shape, part) in parts.items()
        ]
        return LayerRecord(layer, self.rule.value, tuple(tensors))


@dataclass(frozen=True, slots=True)
class Ring:
    """Records of up to length - 1 steps in each ring row, oldest first; a slot's cursor says how many count.

    A slot has a ring row while it has records. Row 0 is nobody's.
    """

    corrections: Tensor  # d: [ring rows, groups, length - 1, heads, value dim]
    keys: Tensor  # k: [ring rows, groups, length - 1, key dim]
    log_decays: Tensor  # g: [ring rows, groups, length - 1, heads], and [key dim] each where the decay is a vector

    @staticmethod
    def empty(shape: RecurrentShape, length: int, rows: int, dtype: DType, device: torch.device) -> "Ring":
        """One layer's, with row 0."""
        assert length > 1, "a matrix that is written in every step needs no ring"
        return Ring(
            *(
                torch.zeros(
                    (rows, shape.groups, length - 1, *tensor.shape), dtype=TORCH_DTYPE[tensor.dtype], device=device
                )
                for tensor in shape.record(0, dtype).tensors
            )
        )


@dataclass(frozen=True, slots=True)
class RecurrentMemory:
    """One layer's matrices [slots, groups, heads, key dim, value dim], and its ring where steps are replayed."""

    matrix: StateMemory
    ring: Ring | None

    @property
    def length(self) -> int:
        """L: a matrix is written every so many steps."""
        return 1 if self.ring is None else self.ring.keys.shape[2] + 1
