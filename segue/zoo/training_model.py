"""The bundled architecture's training forward: the same function as transformers' `lara_mini`, laid out for speed.

Tokens are one flat axis; a batch is rows of equal length, and only the scan over chunks and full attention look at
the rows. So everything else has one shape whatever the row length, and is compiled once.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.zoo import delta_rule, tokenwise
from segue.zoo.architecture import Architecture, Mixer
from segue.zoo.delta_rule import CHUNK_TOKENS, affine_scan, unit_lower_inverse


@dataclass(frozen=True, slots=True)
class Rows:
    """What depends on the row length alone, made once per length."""

    count: int
    positions: Tensor  # [tokens]
    cos: Tensor  # [tokens, 1, head dim]
    sin: Tensor  # [tokens, 1, head dim]
    window_bias: Tensor  # [blocks, 1, window, 2 * window]; zero where a query sees a key, else -inf


@dataclass(frozen=True, slots=True)
class Kernels:
    """The token-wise and chunk-wise parts, either plain or compiled."""

    delta_inputs: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]
    chunk_system: Callable[..., Tensor]
    chunk_terms: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    delta_output: Callable[..., Tensor]
    attention_inputs: Callable[..., tuple[Tensor, Tensor, Tensor]]
    attention_output: Callable[..., Tensor]
    mlp: Callable[..., Tensor]
    token_losses: Callable[..., Tensor]


PLAIN = Kernels(
    tokenwise.delta_inputs,
    delta_rule.chunk_system,
    delta_rule.chunk_terms,
    tokenwise.delta_output,
    tokenwise.attention_inputs,
    tokenwise.attention_output,
    tokenwise.mlp,
    tokenwise.token_losses,
)


def compiled_kernels() -> Kernels:
    return Kernels(
        torch.compile(tokenwise.delta_inputs, dynamic=False),
        torch.compile(delta_rule.chunk_system, dynamic=False),
        torch.compile(delta_rule.chunk_terms, dynamic=False),
        torch.compile(tokenwise.delta_output, dynamic=False),
        torch.compile(tokenwise.attention_inputs, dynamic=False),
        torch.compile(tokenwise.attention_output, dynamic=False),
        torch.compile(tokenwise.mlp, dynamic=False),
        torch.compile(tokenwise.token_losses, dynamic=False),
    )


def make_rows(arch: Architecture, count: int, length: int, device: torch.device, dtype: torch.dtype) -> Rows:
    assert length % CHUNK_TOKENS == 0
    assert length % arch.window == 0
    positions = torch.arange(length, device=device).repeat(count)
    cos, sin = tokenwise.rotary_tables(arch, positions)
    query = torch.arange(arch.window, device=device).unsqueeze(-1)
    key = torch.arange(2 * arch.window, device=device)
    # Keys are the block before and the query's own block; a token sees itself and window - 1 before it.
    seen = (key > query) & (key <= query + arch.window)
    starts_row = (positions[:: arch.window] == 0).view(-1, 1, 1, 1)
    seen = seen & ~(starts_row & (key < arch.window))
    bias = torch.zeros(seen.shape, device=device, dtype=dtype).masked_fill_(~seen, float("-inf"))
    return Rows(count, positions, cos, sin, bias)


class TrainingModel:
    """Maps token ids to losses or logits, given parameters by name; holds none itself."""

    def __init__(self, arch: Architecture, kernels: Kernels, dtype: torch.dtype) -> None:
        self._arch = arch
        self._kernels = kernels
        self._dtype = dtype

    def losses(self, weights: dict[str, Tensor], tokens: Tensor, targets: Tensor, rows: Rows) -> Tensor:
        """Cross entropy of each token's target, [tokens] fp32."""
        hidden = self._hidden(weights, tokens, rows)
        return self._kernels.token_losses(
            self._arch, self._dtype, hidden, weights["model.norm.weight"], weights["model.embed_tokens.weight"], targets
        )

    def logits(self, weights: dict[str, Tensor], tokens: Tensor, rows: Rows) -> Tensor:
        hidden = tokenwise.rms_norm(self._hidden(weights, tokens, rows), weights["model.norm.weight"], self._arch)
        return F.linear(hidden, weights["model.embed_tokens.weight"])

    def _hidden(self, weights: dict[str, Tensor], tokens: Tensor, rows: Rows) -> Tensor:
        x = F.embedding(tokens, weights["model.embed_tokens.weight"])
        for index, mixer in enumerate(self._arch.mixers):
            prefix = f"model.layers.{index}."
            layer = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
            x = self._delta(layer, x, rows) if mixer is Mixer.LINEAR else self._attention(layer, x, rows, mixer)
            x = self._kernels.mlp(
                self._arch,
                self._dtype,
                x,
                layer["post_attention_layernorm.weight"],
                layer["mlp.gate_proj.weight"],
                layer["mlp.up_proj.weight"],
                layer["mlp.down_proj.weight"],
            )
        return x

    def _delta(self, layer: dict[str, Tensor], x: Tensor, rows: Rows) -> Tensor:
        arch, kernels = self._arch, self._kernels
        q, k, v, g, beta, z = kernels.delta_inputs(
            arch,
            self._dtype,
            x,
            layer["input_layernorm.weight"],
            layer["linear_attn.in_proj.weight"],
            layer["linear_attn.conv1d.weight"],
            layer["linear_attn.A_log"],
            layer["linear_attn.dt_bias"],
            rows.positions,
        )
        q, k, v, g, beta = (part.unflatten(1, (-1, CHUNK_TOKENS)) for part in (q, k, v, g, beta))
        inverse = unit_lower_inverse(kernels.chunk_system(k, g, beta))
        m, n, q_state, own = kernels.chunk_terms(inverse, q, k, v, g, beta)
        per_row = (arch.value_heads * rows.count, -1)
        states = affine_scan(m.unflatten(1, (rows.count, -1)).flatten(0, 1), n.view(*per_row, *n.shape[2:]))
        return kernels.delta_output(
            arch,
            self._dtype,
            x,
            q_state,
            own,
            states.view(n.shape),
            z,
            layer["linear_attn.out_norm.weight"],
            layer["linear_attn.out_proj.weight"],
        )

    def _attention(self, layer: dict[str, Tensor], x: Tensor, rows: Rows, mixer: Mixer) -> Tensor:
        arch, kernels = self._arch, self._kernels
        q, k, v = kernels.attention_inputs(
            arch,
            self._dtype,
            x,
            layer["input_layernorm.weight"],
            layer["self_attn.q_proj.weight"],
            layer["self_attn.k_proj.weight"],
            layer["self_attn.v_proj.weight"],
            layer["self_attn.q_norm.weight"],
            layer["self_attn.k_norm.weight"],
            # Full attention has no positions of its own.
            (rows.cos, rows.sin) if mixer is Mixer.SLIDING else None,
        )
        mixed = self._windowed(q, k, v, rows) if mixer is Mixer.SLIDING else self._full(q, k, v, rows)
        return kernels.attention_output(self._dtype, x, mixed, layer["self_attn.o_proj.weight"])

    def _full(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        # [tokens, heads, dim] -> [rows, heads, length, dim]
        q, k, v = (part.unflatten(0, (rows.count, -1)).transpose(1, 2) for part in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(0, 1)

    def _windowed(self, q: Tensor, k: Tensor, v: Tensor, rows: Rows) -> Tensor:
        # [tokens, heads, dim] -> [blocks, window, heads, dim]
        q, k, v = (part.unflatten(0, (-1, self._arch.window)) for part in (q, k, v))
        # The first block's neighbour is the last block; the bias hides it, as it hides the end of the row before.
        k, v = (torch.cat([part.roll(1, 0), part], dim=1).transpose(1, 2) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=rows.window_bias)
        return mixed.transpose(1, 2).flatten(0, 1)
