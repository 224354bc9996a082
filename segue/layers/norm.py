"""Root mean square normalisation (Zhang and Sennrich, 2019), in few operations."""

import math

import torch
from torch import Tensor

from segue.kernels.interface import Kernels, LengthFloor


class RMSNorm:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis; statistics in fp32, result in x's dtype."""

    def __init__(self, kernels: Kernels, weight: Tensor, epsilon: float) -> None:
        """`weight` [..., dim] broadcasts against the inputs' last axes."""
        dim = weight.shape[-1]
        self._kernels = kernels
        # sqrt(mean(x^2) + epsilon) is the length sqrt(sum(x^2) + dim * epsilon) over sqrt(dim).
        self._gain = weight.float() * math.sqrt(dim)
        self._floor = LengthFloor.of(dim * epsilon, weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        return (x / self._kernels.length(x, self._floor)).mul_(self._gain).to(x.dtype)


class UnitNorm:
    """x / sqrt(sum(x^2) + epsilon) over the last axis, in fp32."""

    def __init__(self, kernels: Kernels, epsilon: float, device: torch.device) -> None:
        self._kernels, self._floor = kernels, LengthFloor.of(epsilon, device)

    def __call__(self, x: Tensor) -> Tensor:
        return x / self._kernels.length(x, self._floor)
