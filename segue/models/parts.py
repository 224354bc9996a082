"""What families have in common when they read a checkpoint: embeddings, attention and dense layers under the usual
names.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.errors import CheckpointError
from segue.kernels.interface import AttentionMemory, Kernels, Matrix
from segue.layers.attention import Attention, head_norm
from segue.layers.mlp import GatedMLP
from segue.layers.norm import RMSNorm
from segue.layers.projection import BiasedMatrix
from segue.layers.rope import Rope, interleaved
from segue.models.options import BuildOptions
from segue.models.settings import Settings
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

    def head(self, embedding: Tensor, tied: bool) -> Matrix:
        """The output layer.

        A tied one is kept beside the embedding: a lookup and a product want it in different form.
        """
        return self.projection(embedding if tied else self.weights.take("lm_head.weight", *embedding.shape))

    def dense(self, prefix: str, hidden: int, width: int) -> GatedMLP:
        return GatedMLP(
            self.kernels,
            self.projection(
                self.weights.take(f"{prefix}.gate_proj.weight", width, hidden),
                self.weights.take(f"{prefix}.up_proj.weight", width, hidden),
            ),
            self.projection(self.weights.take(f"{prefix}.down_proj.weight", hidden, width)),
        )

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

        def ordered(x: Tensor) -> Tensor:
            return interleaved(x, dim) if rope else x

        biases = None
        if bias:
            parts = [
                take(f"{prefix}.{name}_proj.bias", size)
                for name, size in zip("qkv", (queries, keys, keys), strict=True)
            ]
            biases = torch.cat([ordered(parts[0]), ordered(parts[1]), parts[2]])
            biases = biases.to(self.options.device, self.options.torch_dtype)
        inward = self.projection(
            ordered(take(f"{prefix}.q_proj.weight", queries, hidden)),
            ordered(take(f"{prefix}.k_proj.weight", keys, hidden)),
            take(f"{prefix}.v_proj.weight", keys, hidden),
            bias=biases,
        )
        outward = self.projection(
            take(f"{prefix}.o_proj.weight", hidden, queries),
            bias=self.tensor(f"{prefix}.o_proj.bias", hidden) if bias else None,
        )
        norm = None
        if norm_epsilon is not None:
            query_norm = ordered(self.exact(f"{prefix}.q_norm.weight", dim))
            key_norm = ordered(self.exact(f"{prefix}.k_norm.weight", dim))
            norm = head_norm(self.kernels, query_norm, key_norm, shape.query_heads, shape.kv_heads, norm_epsilon)
        memory = AttentionMemory(layer=layer, component=component, window=shape.window_of(component), scale=dim**-0.5)
        return Attention(
            memory,
            query_heads=shape.query_heads,
            kv_heads=shape.kv_heads,
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
