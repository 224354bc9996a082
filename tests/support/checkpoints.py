"""Small random checkpoints with a long memory, written as published ones are, beside the transformers model that is
the oracle.

A default random initialisation forgets its state within a few tokens, so that losing it would go unseen. Here decays
are slow and weights large: dropping any part of the state moves logits by about one.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LaraMiniConfig, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen3Config
from transformers.models.auto import AutoModelForCausalLM

from benchmarks.random_model import long_memory

VOCAB = 97
LINEAR, SLIDING, FULL = "linear_attention", "sliding_attention", "full_attention"
ALL_KINDS = (LINEAR, SLIDING, FULL, LINEAR, SLIDING)
SHARED_SIZES: dict[str, object] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model folder and the oracle that wrote it, in fp32."""

    folder: Path
    oracle: PreTrainedModel

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """The oracle's logits of a whole sequence, [tokens, vocab]."""
        with torch.inference_mode():
            positions = torch.arange(len(tokens))[None]
            logits: torch.Tensor = self.oracle(torch.tensor([tokens]), position_ids=positions).logits
        return logits[0]


def lara_mini_config(*kinds: str, window: int = 24, experts: int = 1, **changes: object) -> LaraMiniConfig:
    """`window` counts the token itself, as configs do."""
    kinds = kinds or ALL_KINDS
    sizes: dict[str, object] = {
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "num_experts": experts,
        "num_experts_per_tok": min(experts, 2),
    }
    layers = {"num_hidden_layers": len(kinds), "layer_types": list(kinds), "sliding_window": window}
    return LaraMiniConfig.from_dict(SHARED_SIZES | layers | sizes | changes)


def qwen3_config(*kinds: str, window: int = 24, **changes: object) -> Qwen3Config:
    kinds = kinds or (SLIDING, FULL, SLIDING)
    layers = {"num_hidden_layers": len(kinds), "layer_types": list(kinds), "intermediate_size": 48}
    windows = {"use_sliding_window": SLIDING in kinds, "sliding_window": window}
    return Qwen3Config.from_dict(SHARED_SIZES | layers | windows | changes)


def llama_config(layers: int = 3, **changes: object) -> LlamaConfig:
    return LlamaConfig.from_dict(SHARED_SIZES | {"num_hidden_layers": layers, "intermediate_size": 48} | changes)


def write_checkpoint(config: PretrainedConfig, folder: Path, seed: int = 0) -> Checkpoint:
    """Random weights for a config, saved in fp32."""
    oracle = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.copy_(long_memory(name, parameter.shape, generator))
    oracle.save_pretrained(folder)
    return Checkpoint(folder, oracle)
