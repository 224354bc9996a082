"""AdamW over one flat buffer, with a moving average of the weights; every value lives on the device.

So a whole step can be captured in a CUDA graph: nothing here reads a number back.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
WEIGHT_DECAY = 0.1
GRADIENT_NORM_MAX = 1.0
AVERAGE_DECAY = 0.998


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """Tensors that a step changes in place: parameters, both moments, the average, and the step count."""

    flat: Tensor
    moment1: Tensor
    moment2: Tensor
    average: Tensor
    step: Tensor  # [] fp32


def initial_state(flat: Tensor) -> OptimizerState:
    return OptimizerState(
        flat, torch.zeros_like(flat), torch.zeros_like(flat), flat.clone(), torch.zeros((), device=flat.device)
    )


@torch.no_grad()
def adamw_step(state: OptimizerState, gradient: Tensor, decay_mask: Tensor, rate: Tensor) -> None:
    """One step in place; `rate` is a scalar tensor. A gradient that is not finite counts as zero."""
    norm = gradient.norm()
    scale = (GRADIENT_NORM_MAX / (norm + 1e-6)).clamp(max=1.0)
    gradient = torch.where(norm.isfinite(), gradient * scale, 0.0)
    state.step.add_(1)
    state.moment1.lerp_(gradient, 1 - BETA1)
    state.moment2.lerp_(gradient.square(), 1 - BETA2)
    mean = state.moment1 / (1 - BETA1**state.step)
    spread = (state.moment2 / (1 - BETA2**state.step)).sqrt_().add_(EPSILON)
    state.flat.sub_(rate * (mean / spread + WEIGHT_DECAY * decay_mask * state.flat))
    # Early on the average follows closely, else it would remember the start.
    weight = torch.clamp(10.0 / (state.step + 10.0), min=1 - AVERAGE_DECAY)
    state.average.add_(weight * (state.flat - state.average))
