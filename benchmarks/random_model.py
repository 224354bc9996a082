"""Small random checkpoints of all three traits with a long memory: losing any part of the state changes every answer.

A default random initialisation forgets its state within a few tokens. Here decays are slow and weights large.
"""

import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LaraMiniConfig
from transformers.utils import logging as transformers_logging

VOCABULARY = 512
LINEAR, SLIDING, FULL = "linear_attention", "sliding_attention", "full_attention"
LAYERS = (LINEAR, SLIDING, FULL)


def write_checkpoint(folder: Path, *, window: int, max_len: int, hidden: int, layers: tuple[str, ...] = LAYERS) -> Path:
    """A model of such layers, that sees `window` past keys in its sliding ones. Returns `folder`."""
    config = LaraMiniConfig.from_dict(
        {
            "vocab_size": VOCABULARY,
            "hidden_size": hidden,
            "num_hidden_layers": len(layers),
            "layer_types": list(layers),
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            # A config counts the token itself.
            "sliding_window": window + 1,
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "num_experts": 1,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": hidden,
            "shared_expert_intermediate_size": hidden,
            "max_position_embeddings": max_len,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": None,
        }
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(long_memory(name, parameter.shape, generator))
    transformers_logging.disable_progress_bar()
    model.save_pretrained(folder)
    return folder


def long_memory(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Random values of a parameter, such that what a recurrent layer has seen long ago still shows."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("A_log"):
        return torch.linspace(math.log(0.01), math.log(0.1), shape[0])
    if name.endswith("dt_bias"):
        return torch.zeros(shape)
    if name.endswith("conv1d.weight"):
        return noise * 0.5
    if name.endswith("norm.weight"):
        return 1.0 + noise * 0.1
    if name.endswith("bias"):
        return noise * 0.1
    assert len(shape) >= 2, name
    return noise * 0.7 / math.sqrt(shape[-1])
