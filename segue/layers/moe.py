"""A mixture of experts beside a shared expert that always takes part."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.interface import Matrix
from segue.layers.mlp import GatedMLP


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How many experts a token takes, and whether their weights are made to sum to one."""

    chosen: int
    normalised: bool


class MixtureOfExperts:
    """Each token takes its best experts, weighted by the router's softmax, and the shared expert in full."""

    def __init__(self, routing: Routing, router: Matrix, experts: Sequence[GatedMLP], shared: GatedMLP) -> None:
        """`router` gives each expert's score."""
        self._routing, self._router = routing, router
        self._experts, self._shared = experts, shared

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Adds the layer's output for x [T, hidden] to `total`, in place."""
        scores = torch.softmax(self._router(x).float(), -1)
        weights, chosen = scores.topk(self._routing.chosen, -1)
        if self._routing.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        # Experts in ascending order, so that a token's sum is taken in the same order whatever the batch.
        for expert in chosen.unique().tolist():
            tokens, choice = torch.where(chosen == expert)
            share = weights[tokens, choice].unsqueeze(1).to(x.dtype)
            total.index_add_(0, tokens, self._experts[expert](x[tokens]).mul_(share))
        self._shared.add_to(total, x)
