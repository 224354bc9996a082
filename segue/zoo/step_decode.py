"""Greedy decoding one token at a time over static caches, for a batch of prompts; used to score the trained model.

Prompts are fed by the same step, so rows of unequal length need no padding: all start at position zero.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from segue.zoo.architecture import Architecture, Mixer
from segue.zoo.tokenwise import rms_norm, rotary_tables, rotate

FINISHED_CHECK_STEPS = 32
CAPTURE_WARMUP_STEPS = 2


class StepDecoder:
    """One model and the caches of `batch` sequences that advance together."""

    def __init__(self, arch: Architecture, weights: dict[str, Tensor], batch: int, tokens_max: int) -> None:
        self._arch = arch
        self._weights = weights
        device = weights["model.norm.weight"].device
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self._slots = torch.arange(max(tokens_max, arch.window), device=device)
        self._caches: list[tuple[Tensor, Tensor]] = []
        for mixer in arch.mixers:
            if mixer is Mixer.LINEAR:
                first = torch.zeros(batch, arch.conv_channels, arch.conv_width - 1, device=device)
                second = torch.zeros(batch, arch.value_heads, arch.key_dim, arch.value_dim, device=device)
            else:
                slot_count = arch.window if mixer is Mixer.SLIDING else tokens_max
                first = torch.zeros(batch, slot_count, arch.kv_heads, arch.head_dim, device=device)
                second = torch.zeros_like(first)
            self._caches.append((first, second))

    def reset(self) -> None:
        self.position.zero_()
        for pair in self._caches:
            for cache in pair:
                cache.zero_()

    def step(self, tokens: Tensor) -> Tensor:
        """Logits [batch, vocab] after `tokens` [batch] at the current position, which moves on by one."""
        arch = self._arch
        embedding = self._weights["model.embed_tokens.weight"]
        x = embedding[tokens]
        for index, mixer in enumerate(arch.mixers):
            prefix = f"model.layers.{index}."
            layer = {name.removeprefix(prefix): w for name, w in self._weights.items() if name.startswith(prefix)}
            normed = rms_norm(x, layer["input_layernorm.weight"], arch)
            mix = self._delta if mixer is Mixer.LINEAR else self._attention
            x = x + mix(layer, normed, index)
            normed = rms_norm(x, layer["post_attention_layernorm.weight"], arch)
            opened = F.silu(F.linear(normed, layer["mlp.gate_proj.weight"]))
            value = F.linear(normed, layer["mlp.up_proj.weight"])
            x = x + F.linear(opened * value, layer["mlp.down_proj.weight"])
        self.position.add_(1)
        return F.linear(rms_norm(x, self._weights["model.norm.weight"], arch), embedding)

    def _delta(self, layer: dict[str, Tensor], x: Tensor, index: int) -> Tensor:
        arch = self._arch
        recent, state = self._caches[index]
        inner = arch.value_heads * arch.value_dim
        projected = F.linear(x, layer["linear_attn.in_proj.weight"])
        qkv, z, b, a = projected.split([arch.conv_channels, inner, arch.value_heads, arch.value_heads], dim=-1)
        columns = torch.cat([recent, qkv.unsqueeze(-1)], dim=-1)
        recent.copy_(columns[..., 1:])
        qkv = F.silu((columns * layer["linear_attn.conv1d.weight"].squeeze(1)).sum(-1))
        keys = arch.key_heads * arch.key_dim
        q, k, v = (part.unflatten(-1, (-1, arch.key_dim)) for part in qkv.split([keys, keys, inner], dim=-1))
        groups = arch.value_heads // arch.key_heads
        q, k = (
            (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6)).repeat_interleave(groups, 1)
            for part in (q, k)
        )
        g = -layer["linear_attn.A_log"].exp() * F.softplus(a + layer["linear_attn.dt_bias"])
        state.mul_(g.exp()[..., None, None])
        delta = (v - torch.einsum("bhkv,bhk->bhv", state, k)) * b.sigmoid().unsqueeze(-1)
        state.add_(k.unsqueeze(-1) * delta.unsqueeze(-2))
        mixed = torch.einsum("bhkv,bhk->bhv", state, q * arch.key_dim**-0.5)
        gated = rms_norm(mixed, layer["linear_attn.out_norm.weight"], arch).flatten(1) * F.silu(z)
        return F.linear(gated, layer["linear_attn.out_proj.weight"])

    def _attention(self, layer: dict[str, Tensor], x: Tensor, index: int) -> Tensor:
        arch = self._arch
        keys, values = self._caches[index]
        q, k, v = (
            F.linear(x, layer[f"self_attn.{name}_proj.weight"]).unflatten(-1, (-1, arch.head_dim)) for name in "qkv"
        )
        q, k = (rms_norm(part, layer[f"self_attn.{name}_norm.weight"], arch) for part, name in ((q, "q"), (k, "k")))
        if arch.mixers[index] is Mixer.SLIDING:
            cos, sin = rotary_tables(arch, self.position)
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        slot = self.position % keys.shape[1]
        keys.index_copy_(1, slot, k.unsqueeze(1))
        values.index_copy_(1, slot, v.unsqueeze(1))
        # Before the window is full its later slots are empty; afterwards every slot is one of the last `window` tokens.
        live = self._slots[: keys.shape[1]] <= self.position
        q = q.unflatten(1, (arch.kv_heads, -1))  # [batch, kv heads, group, dim]
        scores = torch.einsum("bhgd,bshd->bhgs", q, keys) * arch.head_dim**-0.5
        shares = scores.masked_fill(~live, float("-inf")).softmax(-1)
        mixed = torch.einsum("bhgs,bshd->bhgd", shares, values)
        return F.linear(mixed.flatten(1), layer["self_attn.o_proj.weight"])


@torch.no_grad()
def generate_greedy(
    arch: Architecture, weights: dict[str, Tensor], prompts: Sequence[Sequence[int]], new_tokens_max: int, end_id: int
) -> list[list[int]]:
    """Each prompt's continuation, without the end token; weights in fp32, on the device to use."""
    device = weights["model.norm.weight"].device
    counts = [len(prompt) for prompt in prompts]
    steps_max = max(counts) + new_tokens_max
    text = torch.zeros(len(prompts), steps_max + 1, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        text[row, : len(prompt)] = torch.tensor(prompt)
    text = text.to(device)
    prompt_ends = torch.tensor(counts, device=device)
    finished = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    decoder = StepDecoder(arch, weights, len(prompts), steps_max)

    def advance() -> None:
        logits = decoder.step(text.index_select(1, decoder.position).squeeze(1))
        given = text.index_select(1, decoder.position).squeeze(1)  # the position has moved on
        in_prompt = decoder.position < prompt_ends
        chosen = torch.where(in_prompt, given, logits.argmax(-1))
        text.index_copy_(1, decoder.position, chosen.unsqueeze(1))
        finished.logical_or_(~in_prompt & (chosen == end_id))

    run = advance
    if device.type == "cuda":
        # Capture runs the first steps of the prompts, which write nothing but the prompts themselves.
        assert min(counts) > CAPTURE_WARMUP_STEPS
        run = _captured(advance)
        decoder.reset()
        finished.zero_()
    for step in range(steps_max):
        run()
        if step % FINISHED_CHECK_STEPS == 0 and bool(finished.all()):
            break
    continuations = []
    for row, count in zip(text.tolist(), counts, strict=True):
        new = row[count : count + new_tokens_max]
        continuations.append(new[: new.index(end_id)] if end_id in new else new)
    return continuations


def _captured(function: Callable[[], None]) -> Callable[[], None]:
    """The function as a CUDA graph; it runs `CAPTURE_WARMUP_STEPS` times on the way, which the caller undoes."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(CAPTURE_WARMUP_STEPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay
