"""The plain transformer stack that the Llama and Qwen 3 families share: attention with rotary positions, dense
layers.
"""

from segue.layers.decoder import Block, Decoder, DecoderParts
from segue.layers.rope import Rope
from segue.models.options import BuildOptions
from segue.models.parts import COMPONENT, AttentionShape, PartBuilder
from segue.models.settings import Settings, read_rope
from segue.state.spec import ModelState, StateTensor
from segue.weights.source import WeightSource


def build_dense(
    settings: Settings,
    weights: WeightSource,
    options: BuildOptions,
    kinds: list[str],
    *,
    head_norm_epsilon: float | None,
) -> Decoder:
    """`kinds` are the layers' types; `head_norm_epsilon` is None where queries and keys are not normed.

    Raises CheckpointError when a tensor is missing or surplus, or a setting is not supported.
    """
    settings.require("hidden_act", settings.text("hidden_act", "silu"), "silu")
    bias = settings.flag("attention_bias", False)
    epsilon = settings.number("rms_norm_eps", 1e-6)
    shape = AttentionShape.of(settings)
    width = settings.integer("intermediate_size")
    rope = Rope(read_rope(settings), shape.head_dim, options.device)
    parts = PartBuilder(weights, options, options.kernels())
    embedding = parts.embedding(settings.integer("vocab_size"), shape.hidden)
    blocks: list[Block] = []
    state: list[StateTensor] = []
    for layer, kind in enumerate(kinds):
        prefix, component = f"model.layers.{layer}", COMPONENT[kind]
        mixer = parts.attention(
            f"{prefix}.self_attn", layer, component, shape, bias=bias, norm_epsilon=head_norm_epsilon, rope=rope
        )
        blocks.append(
            Block(
                parts.norm(f"{prefix}.input_layernorm.weight", shape.hidden, epsilon),
                mixer,
                parts.norm(f"{prefix}.post_attention_layernorm.weight", shape.hidden, epsilon),
                parts.dense(f"{prefix}.mlp", shape.hidden, width),
            )
        )
        state += shape.state(layer, component, options)
    decoder = DecoderParts(
        embedding=embedding,
        blocks=blocks,
        rope=rope,
        norm=parts.norm("model.norm.weight", shape.hidden, epsilon),
        head=parts.head(embedding, settings.flag("tie_word_embeddings", False)),
        state=ModelState.of(state),
        ranks=options.ranks,
        max_position=settings.integer("max_position_embeddings", 2048),
    )
    weights.finish()
    return Decoder(parts.kernels, decoder)
