"""The stack that all families share: embedding, blocks of a mixer and a feed-forward layer, output head."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from segue.kernels.interface import Kernels, Matrix, Mixing
from segue.layers.embedding import Embedding
from segue.layers.norm import RMSNorm
from segue.layers.ranks import Ranks
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
    """`rope` is that of every layer that has one. Mixers and feed-forward layers are those of one of `ranks`: each adds
    its rank's part of what the layer adds.
    """

    embedding: Embedding
    blocks: Sequence[Block]
    rope: Rope | None
    norm: RMSNorm
    head: Matrix
    state: ModelState
    max_position: int
    ranks: Ranks


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
        return self._parts.embedding.vocab_size

    @property
    def max_position(self) -> int:
        return self._parts.max_position

    @property
    def device(self) -> torch.device:
        return self._parts.embedding.table.device

    @torch.inference_mode()
    def forward(self, step: StepContext) -> Tensor:
        """Logits [S, vocab] fp32 of the step's `logit_rows`, on rank 0; writes the state of every row."""
        parts = self._parts
        mixing = self._kernels.begin(step)
        turns = parts.rope.turns(step.positions) if parts.rope else None
        stream = parts.embedding(step.token_ids)
        for block in parts.blocks:
            part = self._part_of(stream)
            block.mixer.add_to(part, block.mixer_norm(stream), turns, mixing)
            self._add_parts(stream, part)
            part = self._part_of(stream)
            block.forward.add_to(part, block.forward_norm(stream))
            self._add_parts(stream, part)
        return parts.head(parts.norm(stream[step.logit_rows])).float()

    def _part_of(self, stream: Tensor) -> Tensor:
        """What a layer adds to: one rank alone adds to the stream itself."""
        return stream if self._parts.ranks.shard.tp_size == 1 else torch.zeros_like(stream)

    def _add_parts(self, stream: Tensor, part: Tensor) -> None:
        if part is not stream:
            stream.add_(self._parts.ranks.all_reduce(part))
