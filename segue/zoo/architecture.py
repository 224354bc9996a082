"""The bundled model's dimensions, and the config.json that says them to transformers and to the engine."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from tokenizers import Tokenizer

from segue.zoo.tokenizer import BEGIN, END, MODEL_TOKENS_MAX, VOCAB_SIZE, token_id


class Mixer(StrEnum):
    """How a layer mixes tokens; the values are the config's `layer_types`."""

    LINEAR = "linear_attention"
    SLIDING = "sliding_attention"
    FULL = "full_attention"


PATTERN = (Mixer.LINEAR, Mixer.SLIDING, Mixer.LINEAR, Mixer.FULL, Mixer.SLIDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A `lara_mini` with one expert, which is dense in effect: expert and shared expert add up to one wide MLP."""

    vocab: int = VOCAB_SIZE
    hidden: int = 256
    mixers: tuple[Mixer, ...] = PATTERN * 2
    query_heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    window: int = 128
    key_heads: int = 4  # of the gated delta rule, as are the next three
    value_heads: int = 8
    key_dim: int = 64
    value_dim: int = 64
    conv_width: int = 4
    expert_width: int = 512
    shared_width: int = 512
    norm_epsilon: float = 1e-6
    rope_theta: float = 10_000.0
    tokens_max: int = MODEL_TOKENS_MAX

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def mlp_width(self) -> int:
        return self.expert_width + self.shared_width


def transformers_config(architecture: Architecture, begin_id: int, end_id: int) -> dict[str, object]:
    return {
        "architectures": ["LaraMiniForCausalLM"],
        "model_type": "lara_mini",
        "dtype": "bfloat16",
        "vocab_size": architecture.vocab,
        "hidden_size": architecture.hidden,
        "num_hidden_layers": len(architecture.mixers),
        "layer_types": [mixer.value for mixer in architecture.mixers],
        "num_attention_heads": architecture.query_heads,
        "num_key_value_heads": architecture.kv_heads,
        "head_dim": architecture.head_dim,
        "sliding_window": architecture.window,
        "linear_num_key_heads": architecture.key_heads,
        "linear_num_value_heads": architecture.value_heads,
        "linear_key_head_dim": architecture.key_dim,
        "linear_value_head_dim": architecture.value_dim,
        "linear_conv_kernel_dim": architecture.conv_width,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "norm_topk_prob": True,
        "moe_intermediate_size": architecture.expert_width,
        "shared_expert_intermediate_size": architecture.shared_width,
        "hidden_act": "silu",
        "rms_norm_eps": architecture.norm_epsilon,
        "rope_parameters": {"rope_type": "default", "rope_theta": architecture.rope_theta},
        "max_position_embeddings": architecture.tokens_max,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.02,
        "bos_token_id": begin_id,
        "eos_token_id": end_id,
        "pad_token_id": end_id,
        "use_cache": True,
    }


def write_config(architecture: Architecture, folder: Path) -> None:
    """Write config.json beside a tokenizer that is already there."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    config = transformers_config(architecture, token_id(tokenizer, BEGIN), token_id(tokenizer, END))
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
