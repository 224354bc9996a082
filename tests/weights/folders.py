"""Small checkpoint folders to break: a config and a few random tensors, in one file or in two shards."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
CONFIG = {"architectures": ["LlamaForCausalLM"], "eos_token_id": 2}


def small_tensors() -> dict[str, torch.Tensor]:
    """Three tensors of three dtypes."""
    source = torch.Generator().manual_seed(7)
    return {
        EMBEDDING: torch.randn(8, 4, generator=source).to(torch.bfloat16),
        "model.layers.0.mlp.up_proj.weight": torch.randn(3, 4, generator=source).to(torch.float16),
        NORM: torch.randn(4, generator=source),
    }


def write_single(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """One model.safetensors; returns the folder."""
    _write_config(folder)
    save_file(tensors, folder / "model.safetensors")
    return folder


def write_sharded(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """The first tensor in one shard, the others in a second; returns the folder."""
    _write_config(folder)
    names = list(tensors)
    shards = {"model-1-of-2.safetensors": names[:1], "model-2-of-2.safetensors": names[1:]}
    for file_name, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file_name)
    write_index(folder, {name: file_name for file_name, members in shards.items() for name in members})
    return folder


def write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def _write_config(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
