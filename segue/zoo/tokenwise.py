"""The parts of the training forward that see tokens one by one, or at most their three neighbours; plain functions.

`x` is the residual stream, [tokens, hidden] fp32; products run in `dtype`, norms and gates in fp32.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.zoo.architecture import Architecture


def rms_norm(x: Tensor, weight: Tensor, arch: Architecture) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + arch.norm_epsilon) * weight


def rotary_tables(arch: Architecture, positions: Tensor) -> tuple[Tensor, Tensor]:
    exponents = torch.arange(0, arch.head_dim, 2, device=positions.device).float() / arch.head_dim
    angles = positions.unsqueeze(-1).float() / arch.rope_theta**exponents
    angles = torch.cat([angles, angles], dim=-1).unsqueeze(1)  # [tokens, 1, head dim]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def causal_convolution(x: Tensor, weight: Tensor, positions: Tensor) -> Tensor:
    """Depthwise over the flat token axis; taps that would reach into the row before are dropped.

    x [tokens, channels]; weight [channels, 1, width], the last tap on the token itself.
    """
    taps = weight.squeeze(1).float().unbind(-1)
    out = x.float() * taps[-1]
    for distance in range(1, len(taps)):
        shifted = F.pad(x, (0, 0, distance, 0))[: x.shape[0]]
        out = out + shifted.float() * taps[-1 - distance] * (positions >= distance).unsqueeze(-1)
    return out


def delta_inputs(
    arch: Architecture,
    dtype: torch.dtype,
    x: Tensor,
    norm: Tensor,
    in_proj: Tensor,
    conv: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """q, k, v [heads, tokens, dim] and g, beta [heads, tokens] in fp32; z [tokens, heads * dim] in `dtype`."""
    inner = arch.value_heads * arch.value_dim
    projected = F.linear(rms_norm(x, norm, arch).to(dtype), in_proj.to(dtype))
    qkv, z, b, a = projected.split([arch.conv_channels, inner, arch.value_heads, arch.value_heads], dim=-1)
    qkv = F.silu(causal_convolution(qkv, conv, positions))
    keys = arch.key_heads * arch.key_dim
    q, k, v = qkv.split([keys, keys, inner], dim=-1)
    q = _unit_length(q.unflatten(-1, (arch.key_heads, -1))) * arch.key_dim**-0.5
    k = _unit_length(k.unflatten(-1, (arch.key_heads, -1)))
    v = v.unflatten(-1, (arch.value_heads, -1))
    g = -a_log.float().exp() * F.softplus(a.float() + dt_bias)
    q, k, v, g, beta = (part.transpose(0, 1).contiguous() for part in (q, k, v, g, b.float().sigmoid()))
    return q, k, v, g, beta, z


def _unit_length(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_output(
    arch: Architecture,
    dtype: torch.dtype,
    x: Tensor,
    q_state: Tensor,
    own: Tensor,
    states: Tensor,
    z: Tensor,
    norm: Tensor,
    out_proj: Tensor,
) -> Tensor:
    """x plus the layer's output. q_state, own, states [heads, chunks, ., .] as `delta_rule` defines Q, O and S."""
    mixed = (q_state @ states + own).flatten(1, 2).transpose(0, 1)  # [tokens, heads, dim]
    gated = rms_norm(mixed, norm, arch).flatten(1) * F.silu(z.float())
    return x + F.linear(gated.to(dtype), out_proj.to(dtype))


def attention_inputs(
    arch: Architecture,
    dtype: torch.dtype,
    x: Tensor,
    norm: Tensor,
    q_proj: Tensor,
    k_proj: Tensor,
    v_proj: Tensor,
    q_norm: Tensor,
    k_norm: Tensor,
    rotary: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [tokens, query heads, dim]; keys and values are repeated for the query heads that share them."""
    normed = rms_norm(x, norm, arch).to(dtype)
    projected = F.linear(normed, torch.cat([q_proj, k_proj, v_proj]).to(dtype)).unflatten(-1, (-1, arch.head_dim))
    q, k, v = projected.split([arch.query_heads, arch.kv_heads, arch.kv_heads], dim=1)
    q, k = rms_norm(q, q_norm, arch), rms_norm(k, k_norm, arch)
    if rotary is not None:
        q, k = rotate(q, *rotary), rotate(k, *rotary)
    groups = arch.query_heads // arch.kv_heads
    return q.to(dtype), k.to(dtype).repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)


def attention_output(dtype: torch.dtype, x: Tensor, mixed: Tensor, o_proj: Tensor) -> Tensor:
    return x + F.linear(mixed.flatten(1).to(dtype), o_proj.to(dtype))


def mlp(
    arch: Architecture, dtype: torch.dtype, x: Tensor, norm: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> Tensor:
    normed = rms_norm(x, norm, arch).to(dtype)
    opened, value = F.linear(normed, torch.cat([gate, up]).to(dtype)).chunk(2, dim=-1)
    return x + F.linear(F.silu(opened) * value, down.to(dtype))


def token_losses(
    arch: Architecture, dtype: torch.dtype, x: Tensor, norm: Tensor, embedding: Tensor, targets: Tensor
) -> Tensor:
    logits = F.linear(rms_norm(x, norm, arch).to(dtype), embedding.to(dtype))
    return F.cross_entropy(logits.float(), targets, reduction="none")
