"""What layers ask of kernels: the one seam behind which the fast and the deterministic implementation stand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.runner.context import StepContext
from segue.state.spec import ComponentName


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionMemory:
    """Where one attention layer keeps keys and values, and how it scores them."""

    layer: int
    component: ComponentName
    window: int | None
    scale: float


@dataclass(frozen=True, slots=True)
class DeltaMemory:
    """Where one gated delta net layer keeps its matrix and convolution state."""

    layer: int


class Mixing(Protocol):
    """One step's token mixing: reads and writes the state of its rows; what layers share of a step is worked out
    once.
    """

    def attend(self, memory: AttentionMemory, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Stores keys and values [T, kv heads, dim], lets query [T, query heads, dim] attend; returns [T, query
        heads * dim].
        """

    def convolve(self, memory: DeltaMemory, columns: Tensor, taps: Sequence[Tensor]) -> Tensor:
        """Causal depthwise convolution of columns [T, groups, channels] with taps [groups, channels] each, oldest
        first.
        """

    def delta(self, memory: DeltaMemory, inputs: DeltaInputs) -> Tensor:
        """The gated delta rule (gated_delta/reference.py); returns what each query reads, like inputs.value."""


class Matrix(Protocol):
    """A constant matrix in whatever form its kernel wants."""

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out], a new tensor."""


@dataclass(frozen=True, slots=True)
class LengthFloor:
    """What is added to the squares of a length, and its root as a tensor without axes."""

    square: float
    root: Tensor

    @staticmethod
    def of(square: float, device: torch.device) -> "LengthFloor":
        return LengthFloor(square, torch.tensor(math.sqrt(square), device=device))


class Kernels(Protocol):
    """The operations of a model's layers on one device."""

    def begin(self, step: StepContext) -> Mixing:
        """Prepares a step's token mixing."""

    def matrix(self, parts: Sequence[Tensor]) -> Matrix:
        """Makes a constant matrix of checkpoint matrices [out, in] that read the same input, outputs side by side."""

    def length(self, x: Tensor, floor: LengthFloor) -> Tensor:
        """sqrt(sum(x^2) + floor) over the last axis, which is kept; fp32."""

    def silu(self, x: Tensor) -> Tensor: ...

    def sigmoid(self, x: Tensor) -> Tensor: ...

    def softplus(self, x: Tensor) -> Tensor: ...
