"""Gated delta net (Yang et al., 2024): projections, convolution, the delta rule, a gated norm.

Channels are ordered by head group from the start: a group is one key head with the value heads that it serves, and its
channels are [query | key | values]. So nothing is reordered while serving, and a group's state is one block.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.interface import DeltaMemory, Kernels, Matrix, Mixing
from segue.kernels.recurrence.memory import RecurrentShape
from segue.kernels.recurrence.rule import Rule
from segue.layers.norm import RMSNorm, UnitNorm
from segue.state.layout import Shard
from segue.state.spec import MATRIX, ComponentName, DType, LayerRecord, StateTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """`heads` counts value heads per group."""

    groups: int
    heads: int
    key_dim: int
    value_dim: int
    width: int

    @property
    def group_channels(self) -> int:
        return 2 * self.key_dim + self.heads * self.value_dim

    @property
    def gate_channels(self) -> int:
        return self.groups * self.heads * self.value_dim

    @property
    def value_heads(self) -> int:
        return self.groups * self.heads

    def state(self, layer: int, dtype: DType) -> tuple[StateTensor, ...]:
        """The matrix state [head, key, value] in fp32; the last width - 1 columns [time, channel], oldest first."""
        matrix = (self.heads, self.key_dim, self.value_dim)
        columns = (self.width - 1, self.group_channels)
        return (
            StateTensor(layer, MATRIX, ComponentName.RECURRENT, self.groups, matrix, DType.FLOAT32),
            StateTensor(layer, "conv", ComponentName.RECURRENT, self.groups, columns, dtype),
        )

    def record(self, layer: int, dtype: DType) -> LayerRecord:
        """What one token adds to a ring; see RecurrentShape."""
        shape = RecurrentShape(
            rule=Rule.GATED_DELTA,
            groups=self.groups,
            heads=self.heads,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
        )
        return shape.record(layer, dtype)

    def of_rank(self, shard: Shard) -> "DeltaShape":
        """The shape of what one rank has."""
        return replace(self, groups=shard.groups(self.groups))

    def of_groups(self, rows: Tensor, shard: Shard) -> Tensor:
        """One rank's part of rows that are ordered by group."""
        size, first = rows.shape[0] // self.groups, shard.first_group(self.groups)
        return rows[first * size : (first + shard.groups(self.groups)) * size]

    def by_group(self, channels: Tensor) -> Tensor:
        """Rows [all queries | all keys | all values] of a checkpoint tensor, reordered by group."""
        keys = self.groups * self.key_dim
        parts = channels.split([keys, keys, self.gate_channels])
        return torch.cat([part.unflatten(0, (self.groups, -1)) for part in parts], 1).flatten(0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaWeights:
    """`inward` gives [channels by group | gate | beta | step]; `taps` [groups, channels] each, oldest first;
    `rate` = -exp(A_log) and `step_bias` [groups, heads], fp32; `norm` over the value dim."""

    inward: Matrix
    taps: tuple[Tensor, ...]
    rate: Tensor
    step_bias: Tensor
    norm: RMSNorm
    outward: Matrix


class GatedDeltaNet:
    """Mixes tokens through a matrix state of constant size."""

    def __init__(self, kernels: Kernels, memory: DeltaMemory, shape: DeltaShape, weights: DeltaWeights) -> None:
        self._kernels, self._memory, self._shape, self._weights = kernels, memory, shape, weights
        self._unit = UnitNorm(kernels, 1e-6, weights.rate.device)
        heads = shape.value_heads
        self._split = (shape.groups * shape.group_channels, shape.gate_channels, heads, heads)

    def add_to(self, total: Tensor, x: Tensor, turns: Tensor | None, mixing: Mixing) -> None:
        """Adds the layer's output for x [T, hidden] to `total`, in place; positions (`turns`) are not used."""
        shape, weights, kernels = self._shape, self._weights, self._kernels
        columns, gate, beta, step = weights.inward(x).split(self._split, 1)
        columns = columns.view(-1, shape.groups, shape.group_channels)
        mixed = kernels.silu(mixing.convolve(self._memory, columns, weights.taps)).float()
        query_key, value = mixed.tensor_split((2 * shape.key_dim,), -1)
        query_key = self._unit(query_key.view(-1, shape.groups, 2, shape.key_dim))
        value = value.view(-1, shape.groups, shape.heads, shape.value_dim)
        per_head = (-1, shape.groups, shape.heads)
        log_decay = kernels.softplus(step.float().reshape(per_head) + weights.step_bias).mul_(weights.rate)
        rate = kernels.sigmoid(beta.float().reshape(per_head))
        reads = mixing.delta(self._memory, DeltaInputs(query_key, value, log_decay, rate))
        normed = weights.norm(reads).mul_(kernels.silu(gate.float()).view(reads.shape))
        total.add_(weights.outward(normed.flatten(1).to(x.dtype)))
