"""The stack that all families share: embedding, blocks of a mixer and a feed-forward layer, output head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding

from segue.kernels.interface import Kernels, Matrix, Mixing
from segue.layers.norm import RMSNorm
from segue.layers.rope import Rope
from segue.runner.context import StepContext
from segue.state.spec import ModelState


class Mixer(Protocol):
    """Attention or a recurrent layer."""

    def add_to(self, total: Tensor, x: Tensor, turns: Tensor | None, mixing: Mixing) -> None: ...


class FeedForward(Protocol):
    """A dense or a routed layer."""

    def add_to(self, total: Tensor, x: Tensor) -> None: ...


@dataclass(frozen=True, slots=True)
class Block:
    """One layer: mixer, then feed-forward, each on the normed residual stream and added to it."""

    mixer_norm: RMSNorm
    mixer: Mixer
    forward_norm: RMSNorm
    forward: FeedForward


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderParts:
    """`embedding` [vocab, hidden]; `rope` is that of every layer that has one."""

    embedding: Tensor
    blocks: Sequence[Block]
    rope: Rope | None
    norm: RMSNorm
    head: Matrix
    state: ModelState
    max_position: int


class Decoder:
    """A decoder-only language model; the `Model` that the runner drives."""

    def __init__(self, kernels: Kernels, parts: DecoderParts) -> None:
        self._kernels = kernels
        self._parts = parts

    @property
    def state(self) -> ModelState:
        return self._parts.state

    @property
    def vocab_size(self) -> int:
        return self._parts.embedding.shape[0]

    @property
    def max_position(self) -> int:
        return self._parts.max_position

    @property
    def device(self) -> torch.device:
        return self._parts.embedding.device

    @torch.inference_mode()
    def forward(self, step: StepContext) -> Tensor:
        """Logits [S, vocab] fp32 of the step's `logit_rows`; writes the state of every row."""
        parts = self._parts
        mixing = self._kernels.begin(step)
        turns = parts.rope.turns(step.positions) if parts.rope else None
        stream = embedding(step.token_ids, parts.embedding)
        for block in parts.blocks:
            block.mixer.add_to(stream, block.mixer_norm(stream), turns, mixing)
            block.forward.add_to(stream, block.forward_norm(stream))
        return parts.head(parts.norm(stream[step.logit_rows])).float()
