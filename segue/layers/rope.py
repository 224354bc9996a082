"""Rotary position embedding (Su et al., 2021) as one complex product, with the frequency scalings that checkpoints
name.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.errors import CheckpointError

# Elements below which torch gives an operation to one thread (at::internal::GRAIN_SIZE).
UNCUT_NUMEL = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths are stretched by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """`scaling` is a plain factor (type linear), Llama 3.1's, or None."""

    theta: float
    scaling: float | Llama3Scaling | None = None


class Rope:
    """Turns pairs of a head's dims by angles that grow with the position.

    Checkpoints pair dim i with dim i + dim / 2. Here the two stand side by side (`interleaved`), so that a pair is a
    complex number. Dot products of queries and keys do not change, if both are reordered.
    """

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        if head_dim % 2:
            raise CheckpointError(f"rotary embedding needs an even head_dim, config.json says {head_dim}")
        self._frequencies = _frequencies(config, head_dim).to(device)

    def turns(self, positions: Tensor) -> Tensor:
        """The unit complex numbers for positions [T]: [T, 1, head dim / 2]."""
        angles = torch.outer(positions.float(), self._frequencies)
        return torch.complex(torch.cos(angles), torch.sin(angles)).unsqueeze(1)

    def rotate(self, x: Tensor, turns: Tensor) -> Tensor:
        """x [T, heads, head dim], interleaved; a new tensor of the same shape."""
        pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
        turned = pairs * turns if pairs.numel() < UNCUT_NUMEL or not x.is_cpu else _in_parts(pairs, turns)
        return torch.view_as_real(turned).view(x.shape).to(x.dtype)


def _in_parts(pairs: Tensor, turns: Tensor) -> Tensor:
    """pairs [T, heads, head dim / 2] times turns, in products that are too small to be cut between threads.

    A complex product rounds otherwise in the tail of a vector loop than in its body, and torch cuts a large one
    anywhere, also within a head: a token's bits would depend on how many stand beside it.
    """
    tokens = max(1, (UNCUT_NUMEL - 1) // pairs[0].numel())
    return torch.cat([part * turn for part, turn in zip(pairs.split(tokens), turns.split(tokens), strict=True)])


def interleaved(x: Tensor, head_dim: int) -> Tensor:
    """Rows [heads * head dim, ...] of a projection (or [head dim] of a norm) reordered so that a pair stands side by
    side.
    """
    heads: Tensor = x.unflatten(0, (-1, 2, head_dim // 2))
    return heads.transpose(1, 2).reshape(x.shape)


def _frequencies(config: RopeConfig, head_dim: int) -> Tensor:
    frequencies = 1.0 / config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    scaling = config.scaling
    if scaling is None:
        return frequencies
    if not isinstance(scaling, Llama3Scaling):
        return frequencies / scaling
    turns = scaling.original_max_position * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return frequencies * kept + frequencies / scaling.factor * (1.0 - kept)
