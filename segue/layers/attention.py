"""Grouped-query attention: fused projections, optional norms of queries and keys, optional rotary positions."""

import torch
from torch import Tensor

from segue.kernels.interface import AttentionMemory, Kernels, Matrix, Mixing
from segue.layers.norm import RMSNorm
from segue.layers.rope import Rope


class Attention:
    """Mixes tokens by attention over the layer's keys and values."""

    def __init__(
        self,
        memory: AttentionMemory,
        *,
        query_heads: int,
        kv_heads: int,
        head_dim: int,
        inward: Matrix,
        norm: RMSNorm | None,
        rope: Rope | None,
        outward: Matrix,
    ) -> None:
        """`inward` gives [queries | keys | values]; `norm` has one weight row per query and key head; both `rope`
        order if given.
        """
        self._memory = memory
        self._query_heads, self._rotated_heads = query_heads, query_heads + kv_heads
        self._shape = (-1, query_heads + 2 * kv_heads, head_dim)
        self._inward, self._norm, self._rope, self._outward = inward, norm, rope, outward

    def add_to(self, total: Tensor, x: Tensor, turns: Tensor | None, mixing: Mixing) -> None:
        """Adds the layer's output for x [T, hidden] to `total`, in place; `turns` are the step's, of this layer's
        rope.
        """
        heads = self._inward(x).view(self._shape)
        rotated = heads[:, : self._rotated_heads]
        if self._norm is not None:
            rotated = self._norm(rotated)
        if self._rope is not None:
            assert turns is not None
            rotated = self._rope.rotate(rotated, turns)
        query, key = rotated.tensor_split((self._query_heads,), 1)
        value = heads[:, self._rotated_heads :]
        total.add_(self._outward(mixing.attend(self._memory, query, key, value)))


def head_norm(
    kernels: Kernels, query_weight: Tensor, key_weight: Tensor, query_heads: int, kv_heads: int, epsilon: float
) -> RMSNorm:
    """The norms of queries and keys [head dim] as one over the heads of both."""
    weight = torch.cat([query_weight.expand(query_heads, -1), key_weight.expand(kv_heads, -1)])
    return RMSNorm(kernels, weight, epsilon)
