"""What families have in common when they read a checkpoint: embeddings, attention and dense layers under the usual
names.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.errors import CheckpointError, ConfigError
from segue.kernels.interface import AttentionMemory, Kernels, Matrix
from segue.layers.attention import Attention, head_norm
from segue.layers.embedding import Embedding
from segue.layers.mlp import GatedMLP
from segue.layers.norm import RMSNorm
from segue.layers.projection import BiasedMatrix
from segue.layers.ranks import JoinedMatrix
from segue.layers.rope import Rope, interleaved
from segue.models.options import BuildOptions
from segue.models.settings import Settings
from segue.state.layout import Shard
from segue.state.spec import ComponentName, DType, StateTensor
from segue.weights.source import WeightSource

COMPONENT = {"full_attention": ComponentName.FULL, "sliding_attention": ComponentName.WINDOW}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """`window` is W, the past keys a sliding layer's token sees beside itself."""

    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int
    window: int | None

    @staticmethod
    def of(settings: Settings) -> "AttentionShape":
        hidden, query_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
        kv_heads = settings.integer("num_key_value_heads", query_heads)
        if query_heads % kv_heads:
            raise CheckpointError(f"{query_heads} query heads do not share {kv_heads} kv heads evenly")
        # Configs count the token itself: a sliding_window of 512 is 511 past keys.
        window = settings.integer("sliding_window") - 1 if settings.has("sliding_window") else None
        if window is not None and window < 1:
            raise CheckpointError(f"sliding_window {window + 1} leaves a token nothing but itself")
        return AttentionShape(
            hidden=hidden,
            query_heads=query_heads,
            kv_heads=kv_heads,
            head_dim=settings.integer("head_dim", hidden // query_heads),
            window=window,
        )

    def of_rank(self, shard: Shard) -> "RankHeads":
        """The heads of one rank. Raises ConfigError where they cannot be dealt out."""
        require_split(shard, "query heads", self.query_heads, self.query_heads % shard.tp_size == 0)
        require_split(shard, "key and value heads", self.kv_heads, shard.splits(self.kv_heads))
        queries, keys = self.query_heads // shard.tp_size, shard.groups(self.kv_heads)
        first_query, first_key = shard.tp_rank * queries, shard.first_group(self.kv_heads)
        query_span = slice(first_query * self.head_dim, (first_query + queries) * self.head_dim)
        key_span = slice(first_key * self.head_dim, (first_key + keys) * self.head_dim)
        return RankHeads(queries, keys, (query_span, key_span, key_span))

    def window_of(self, component: ComponentName) -> int | None:
        """W for sliding layers. Raises CheckpointError when the config names no window."""
        if component is ComponentName.FULL:
            return None
        if self.window is None:
            raise CheckpointError("config.json has sliding layers and no sliding_window")
        return self.window

    def state(self, layer: int, component: ComponentName, options: BuildOptions) -> tuple[StateTensor, ...]:
        """Keys and values of one layer; in 8 bits, each vector with its scale beside it."""
        window = self.window_of(component)

        def tensor(name: str, size: int, dtype: DType) -> StateTensor:
            return StateTensor(layer, name, component, self.kv_heads, (size,), dtype, window)

        if options.kv_dtype is None:
            return tuple(tensor(name, self.head_dim, options.dtype) for name in ("k", "v"))
        return tuple(
            part
            for name in ("k", "v")
            for part in (
                tensor(name, self.head_dim, options.kv_dtype),
                tensor(f"{name}_scale", 1, DType.FLOAT32),
            )
        )


@dataclass(frozen=True, slots=True)
class RankHeads:
    """How many heads a rank has, and `spans`: the rows of the checkpoint's query, key and value matrices that it has
    of them.
    """

    query_heads: int
    kv_heads: int
    spans: tuple[slice, slice, slice]


def require_split(shard: Shard, what: str, count: int, splits: bool) -> None:
    """Raises ConfigError unless the ranks can share so many of `what`."""
    if not splits:
        raise ConfigError(
            f"the model's {count} {what} cannot be dealt out over {shard.tp_size} tensor-parallel ranks", param="tp"
        )


@dataclass(frozen=True, slots=True)
class PartBuilder:
    """Takes a checkpoint's tensors and makes layers of them."""

    weights: WeightSource
    options: BuildOptions
    kernels: Kernels

    def tensor(self, name: str, *shape: int) -> Tensor:
        """A copy in the compute dtype, as it lies in the checkpoint."""
        return self.weights.take(name, *shape).to(self.options.device, self.options.torch_dtype, copy=True)

    def exact(self, name: str, *shape: int) -> Tensor:
        """A copy in fp32, for the few numbers that are never rounded to the compute dtype."""
        return self.weights.take(name, *shape).to(self.options.device, torch.float32, copy=True)

    def projection(self, *matrices: Tensor, bias: Tensor | None = None) -> Matrix:
        """Checkpoint matrices [out, in] that read the same input, as one layer."""
        matrix = self.kernels.matrix(matrices)
        return matrix if bias is None else BiasedMatrix(matrix, bias)

    def norm(self, name: str, size: int, epsilon: float) -> RMSNorm:
        return RMSNorm(self.kernels, self.exact(name, size), epsilon)

    def embedding(self, vocab_size: int, hidden: int) -> Embedding:
        """This rank's rows of the table."""
        require_split(self.options.shard, "tokens", vocab_size, vocab_size >= self.options.shard.tp_size)
        span = self.options.shard.span(vocab_size)
        table = self.weights.take("model.embed_tokens.weight", vocab_size, hidden)[span]
        table = table.to(self.options.device, self.options.torch_dtype, copy=True)
        return Embedding(table, vocab_size, span.start, self.options.ranks)

    def head(self, embedding: Embedding, tied: bool) -> Matrix:
        """The output layer.

        A tied one is kept beside the embedding: a lookup and a product want it in different form.
        """
        size, table, span = embedding.vocab_size, embedding.table, self.options.shard.span(embedding.vocab_size)
        if not tied:
            table = self.weights.take("lm_head.weight", size, table.shape[1])[span]
        return JoinedMatrix(self.projection(table), self.options.ranks, size)

    def dense(self, prefix: str, hidden: int, width: int) -> GatedMLP:
        """This rank's part of the width."""
        require_split(self.options.shard, "dims of a layer", width, width >= self.options.shard.tp_size)
        span, take = self.options.shard.span(width), self.weights.take
        gate, up = (take(f"{prefix}.{name}_proj.weight", width, hidden)[span] for name in ("gate", "up"))
        down = take(f"{prefix}.down_proj.weight", hidden, width)[:, span]
        return GatedMLP(self.kernels, self.projection(gate, up), self.projection(down))

    def attention(
        self,
        prefix: str,
        layer: int,
        component: ComponentName,
        shape: AttentionShape,
        *,
        bias: bool,
        norm_epsilon: float | None,
        rope: Rope | None,
    ) -> Attention:
        """`norm_epsilon` is None for families that do not norm queries and keys."""
        take, hidden, dim = self.weights.take, shape.hidden, shape.head_dim
        queries, keys = shape.query_heads * dim, shape.kv_heads * dim
        ours = shape.of_rank(self.options.shard)

        def ordered(x: Tensor) -> Tensor:
            return interleaved(x, dim) if rope else x

        biases = None
        if bias:
            parts = [
                take(f"{prefix}.{name}_proj.bias", size)[span]
                for name, size, span in zip("qkv", (queries, keys, keys), ours.spans, strict=True)
            ]
            biases = torch.cat([ordered(parts[0]), ordered(parts[1]), parts[2]])
            biases = biases.to(self.options.device, self.options.torch_dtype)
        inward = self.projection(
            ordered(take(f"{prefix}.q_proj.weight", queries, hidden)[ours.spans[0]]),
            ordered(take(f"{prefix}.k_proj.weight", keys, hidden)[ours.spans[1]]),
            take(f"{prefix}.v_proj.weight", keys, hidden)[ours.spans[2]],
            bias=biases,
        )
        outward_bias = self.tensor(f"{prefix}.o_proj.bias", hidden) if bias else None
        outward = self.projection(
            take(f"{prefix}.o_proj.weight", hidden, queries)[:, ours.spans[0]],
            # What the ranks give is added up: one of them adds it.
            bias=outward_bias if self.options.shard.tp_rank == 0 else None,
        )
        norm = None
        if norm_epsilon is not None:
            query_norm = ordered(self.exact(f"{prefix}.q_norm.weight", dim))
            key_norm = ordered(self.exact(f"{prefix}.k_norm.weight", dim))
            norm = head_norm(self.kernels, query_norm, key_norm, ours.query_heads, ours.kv_heads, norm_epsilon)
        memory = AttentionMemory(layer=layer, component=component, window=shape.window_of(component), scale=dim**-0.5)
        return Attention(
            memory,
            query_heads=ours.query_heads,
            kv_heads=ours.kv_heads,
            head_dim=dim,
            inward=inward,
            norm=norm,
            rope=rope,
            outward=outward,
        )


def read_layer_types(settings: Settings, default: list[str], known: set[str]) -> list[str]:
    """The kind of each layer. Raises CheckpointError naming one that the family does not have, or a wrong count."""
    kinds = settings.texts("layer_types", default)
    if len(kinds) != settings.integer("num_hidden_layers"):
        raise CheckpointError(
            f"config.json has {len(kinds)} layer_types for {settings.integer('num_hidden_layers')} layers"
        )
    if unknown := next((kind for kind in kinds if kind not in known), None):
        raise CheckpointError(f"layer type '{unknown}' is not supported here ({', '.join(sorted(known))} are)")
    return kinds
