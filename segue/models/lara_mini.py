"""The Lara Mini family: gated delta net, sliding and full attention in any order, experts beside a shared expert.

Sliding layers have rotary positions, full layers have none. With one expert the two add up to one wide dense layer.
"""

from collections.abc import Mapping

import torch

from segue.errors import CheckpointError
from segue.kernels.interface import DeltaMemory
from segue.layers.decoder import Block, Decoder, DecoderParts, FeedForward, Mixer
from segue.layers.gated_delta_net import DeltaShape, DeltaWeights, GatedDeltaNet
from segue.layers.mlp import GatedMLP
from segue.layers.moe import MixtureOfExperts, Routing
from segue.layers.norm import RMSNorm
from segue.layers.rope import Rope
from segue.models.options import BuildOptions
from segue.models.parts import COMPONENT, AttentionShape, PartBuilder, read_layer_types, require_split
from segue.models.settings import Settings, read_rope
from segue.runner.context import Model
from segue.state.spec import ComponentName, LayerRecord, ModelState, StateTensor
from segue.weights.source import WeightSource

LINEAR = "linear_attention"
PATTERN = [LINEAR, "sliding_attention", LINEAR, "full_attention", "sliding_attention"]


def build(config: Mapping[str, object], weights: WeightSource, options: BuildOptions) -> Model:
    """Raises CheckpointError when config.json asks for what the family does not have, or a tensor is missing or
    surplus.
    """
    settings = Settings(config)
    settings.require("hidden_act", settings.text("hidden_act", "silu"), "silu")
    bias = settings.flag("attention_bias", False)
    epsilon = settings.number("rms_norm_eps", 1e-6)
    shape = AttentionShape.of(settings)
    delta = _delta_shape(settings)
    count = settings.integer("num_hidden_layers")
    default = [PATTERN[layer % len(PATTERN)] for layer in range(count)]
    kinds = read_layer_types(settings, default, {LINEAR, *COMPONENT})
    rope = Rope(read_rope(settings), shape.head_dim, options.device)
    parts = PartBuilder(weights, options, options.kernels())
    embedding = parts.embedding(settings.integer("vocab_size"), shape.hidden)
    blocks: list[Block] = []
    state: list[StateTensor] = []
    records: list[LayerRecord] = []
    for layer, kind in enumerate(kinds):
        prefix = f"model.layers.{layer}"
        mixer: Mixer
        if kind == LINEAR:
            mixer = _delta_net(parts, f"{prefix}.linear_attn", layer, shape.hidden, delta, epsilon)
            state += delta.state(layer, options.dtype)
            records.append(delta.record(layer, options.dtype))
        else:
            component = COMPONENT[kind]
            mixer = parts.attention(
                f"{prefix}.self_attn",
                layer,
                component,
                shape,
                bias=bias,
                norm_epsilon=epsilon,
                rope=rope if component is ComponentName.WINDOW else None,
            )
            state += shape.state(layer, component, options)
        blocks.append(
            Block(
                parts.norm(f"{prefix}.input_layernorm.weight", shape.hidden, epsilon),
                mixer,
                parts.norm(f"{prefix}.post_attention_layernorm.weight", shape.hidden, epsilon),
                _feed_forward(parts, f"{prefix}.mlp", shape.hidden, settings),
            )
        )
    decoder = DecoderParts(
        embedding=embedding,
        blocks=blocks,
        rope=rope,
        norm=parts.norm("model.norm.weight", shape.hidden, epsilon),
        head=parts.head(embedding, settings.flag("tie_word_embeddings", True)),
        state=ModelState.of(state, records),
        ranks=options.ranks,
        max_position=settings.integer("max_position_embeddings", 131_072),
    )
    weights.finish()
    return Decoder(parts.kernels, decoder)


def _delta_shape(settings: Settings) -> DeltaShape:
    groups = settings.integer("linear_num_key_heads", 8)
    values = settings.integer("linear_num_value_heads", 16)
    if values % groups:
        raise CheckpointError(f"{values} value heads do not share {groups} key heads evenly")
    width = settings.integer("linear_conv_kernel_dim", 4)
    if width < 2:
        raise CheckpointError(f"linear_conv_kernel_dim is {width}, it must be at least 2")
    return DeltaShape(
        groups=groups,
        heads=values // groups,
        key_dim=settings.integer("linear_key_head_dim", 128),
        value_dim=settings.integer("linear_value_head_dim", 128),
        width=width,
    )


def _delta_net(
    parts: PartBuilder, prefix: str, layer: int, hidden: int, shape: DeltaShape, epsilon: float
) -> GatedDeltaNet:
    shard = parts.options.shard
    require_split(shard, "linear key heads", shape.groups, shard.splits(shape.groups))
    ours = shape.of_rank(shard)
    channels, heads = shape.groups * shape.group_channels, shape.value_heads
    rows = (channels, shape.gate_channels, heads, heads)
    mixed, *gates = parts.weights.take(f"{prefix}.in_proj.weight", sum(rows), hidden).split(rows)
    taps = shape.of_groups(shape.by_group(parts.tensor(f"{prefix}.conv1d.weight", channels, 1, shape.width)), shard)
    per_head = (ours.groups, ours.heads)
    outward = shape.of_groups(parts.weights.take(f"{prefix}.out_proj.weight", hidden, shape.gate_channels).T, shard).T
    if not shard.leads(shape.groups):
        # What the ranks give is added up, and another one has the same groups.
        outward = torch.zeros_like(outward)
    # The rule wants queries scaled by key_dim ** -0.5. The norm that follows takes the scale out again, but for its
    # epsilon.
    norm = RMSNorm(parts.kernels, parts.exact(f"{prefix}.out_norm.weight", shape.value_dim), epsilon * shape.key_dim)
    weights = DeltaWeights(
        inward=parts.projection(
            shape.of_groups(shape.by_group(mixed), shard), torch.cat([shape.of_groups(gate, shard) for gate in gates])
        ),
        taps=taps.view(ours.groups, ours.group_channels, ours.width).movedim(-1, 0).contiguous().unbind(0),
        rate=-shape.of_groups(parts.exact(f"{prefix}.A_log", heads), shard).exp().view(per_head),
        step_bias=shape.of_groups(parts.exact(f"{prefix}.dt_bias", heads), shard).view(per_head),
        norm=norm,
        outward=parts.projection(outward),
    )
    return GatedDeltaNet(parts.kernels, DeltaMemory(layer), ours, weights)


def _feed_forward(parts: PartBuilder, prefix: str, hidden: int, settings: Settings) -> FeedForward:
    experts = settings.integer("num_experts", 128)
    width, shared_width = (settings.integer(f"{name}_intermediate_size", 512) for name in ("moe", "shared_expert"))
    take = parts.weights.take
    router = parts.exact(f"{prefix}.gate.weight", experts, hidden)
    inward = take(f"{prefix}.experts.gate_up_proj", experts, 2 * width, hidden)
    outward = take(f"{prefix}.experts.down_proj", experts, hidden, width)
    shared = f"{prefix}.shared_expert"
    for size in (width, shared_width):
        require_split(parts.options.shard, "dims of an expert", size, size >= parts.options.shard.tp_size)
    span, shared_span = (parts.options.shard.span(size) for size in (width, shared_width))
    if experts > 1:
        chosen = settings.integer("num_experts_per_tok", 4)
        if not 1 <= chosen <= experts:
            raise CheckpointError(f"num_experts_per_tok is {chosen}, the model has {experts} experts")
        routing = Routing(chosen=chosen, normalised=settings.flag("norm_topk_prob", True))
        routed = [
            GatedMLP(
                parts.kernels,
                parts.projection(*(half[span] for half in inward[expert].split(width))),
                parts.projection(outward[expert][:, span]),
            )
            for expert in range(experts)
        ]
        return MixtureOfExperts(
            routing, parts.kernels.matrix([router]), routed, parts.dense(shared, hidden, shared_width)
        )
    # The softmax over one expert is one, so both halves are added with weight one, whatever the router says.
    gate, up = inward[0].split(width)
    shared_gate, shared_up = (
        take(f"{shared}.{name}_proj.weight", shared_width, hidden)[shared_span] for name in ("gate", "up")
    )
    down = take(f"{shared}.down_proj.weight", hidden, shared_width)[:, shared_span]
    return GatedMLP(
        parts.kernels,
        parts.projection(gate[span], shared_gate, up[span], shared_up),
        parts.projection(torch.cat([outward[0][:, span], down], 1)),
    )
