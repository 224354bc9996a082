"""The trained parameters as views of one flat fp32 buffer, so that an optimizer step is a handful of kernels.

Names are the checkpoint's on-disk names, but for the MLP: the one expert and the shared expert are trained as one
wide MLP and parted again by `export`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.zoo.architecture import Architecture, Mixer


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    name: str
    shape: tuple[int, ...]
    std: float | None  # None: the parameter has its own start
    decayed: bool  # by weight decay

    @property
    def count(self) -> int:
        return math.prod(self.shape)


def parameter_specs(arch: Architecture) -> list[ParameterSpec]:
    specs: list[ParameterSpec] = []

    def matrix(name: str, rows: int, columns: int, gain: float = 0.5) -> None:
        specs.append(ParameterSpec(name, (rows, columns), gain / math.sqrt(columns), decayed=True))

    def vector(name: str, *shape: int, std: float | None = None) -> None:
        specs.append(ParameterSpec(name, shape, std, decayed=False))

    # Matrices that write to the residual stream start smaller, so that its size does not grow with depth.
    residual = 0.5 / math.sqrt(2 * len(arch.mixers))
    specs.append(ParameterSpec("model.embed_tokens.weight", (arch.vocab, arch.hidden), 0.03, decayed=False))
    for index, mixer in enumerate(arch.mixers):
        layer = f"model.layers.{index}."
        vector(layer + "input_layernorm.weight", arch.hidden)
        if mixer is Mixer.LINEAR:
            inner = arch.value_heads * arch.value_dim
            delta = layer + "linear_attn."
            matrix(delta + "in_proj.weight", arch.conv_channels + inner + 2 * arch.value_heads, arch.hidden)
            vector(delta + "conv1d.weight", arch.conv_channels, 1, arch.conv_width, std=0.5)
            vector(delta + "A_log", arch.value_heads)
            vector(delta + "dt_bias", arch.value_heads)
            vector(delta + "out_norm.weight", arch.value_dim)
            matrix(delta + "out_proj.weight", arch.hidden, inner, residual)
        else:
            attention = layer + "self_attn."
            matrix(attention + "q_proj.weight", arch.query_heads * arch.head_dim, arch.hidden)
            matrix(attention + "k_proj.weight", arch.kv_heads * arch.head_dim, arch.hidden)
            matrix(attention + "v_proj.weight", arch.kv_heads * arch.head_dim, arch.hidden)
            matrix(attention + "o_proj.weight", arch.hidden, arch.query_heads * arch.head_dim, residual)
            vector(attention + "q_norm.weight", arch.head_dim)
            vector(attention + "k_norm.weight", arch.head_dim)
        vector(layer + "post_attention_layernorm.weight", arch.hidden)
        matrix(layer + "mlp.gate_proj.weight", arch.mlp_width, arch.hidden)
        matrix(layer + "mlp.up_proj.weight", arch.mlp_width, arch.hidden)
        matrix(layer + "mlp.down_proj.weight", arch.hidden, arch.mlp_width, residual)
    vector("model.norm.weight", arch.hidden)
    return specs


def initial_flat(arch: Architecture, seed: int) -> Tensor:
    """Start values, [parameters] fp32 on the CPU. Decays start long: a state that forgets at once learns little."""
    generator = torch.Generator().manual_seed(seed)
    parts: list[Tensor] = []
    for spec in parameter_specs(arch):
        if spec.std is not None:
            part = torch.randn(spec.shape, generator=generator) * spec.std
        elif spec.name.endswith("A_log"):
            part = torch.linspace(math.log(0.005), math.log(0.2), spec.count)
        elif spec.name.endswith("dt_bias"):
            part = torch.zeros(spec.shape)
        else:
            assert spec.name.endswith("norm.weight")
            part = torch.ones(spec.shape)
        parts.append(part.flatten())
    return torch.cat(parts)


def named_views(arch: Architecture, flat: Tensor) -> dict[str, Tensor]:
    """The parameters by name, each a view into `flat`."""
    specs = parameter_specs(arch)
    sizes = [spec.count for spec in specs]
    assert sum(sizes) == flat.numel()
    return {spec.name: part.view(spec.shape) for spec, part in zip(specs, flat.split(sizes), strict=True)}


def decay_mask(arch: Architecture) -> Tensor:
    """One where weight decay applies, else zero; [parameters]."""
    return torch.cat([torch.full((spec.count,), float(spec.decayed)) for spec in parameter_specs(arch)])
