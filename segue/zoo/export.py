"""Trained parameters to a checkpoint folder in the published `lara_mini` format, in two shards."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from segue.zoo.architecture import Architecture
from segue.zoo.parameters import named_views

SHARD_COUNT = 2


def checkpoint_tensors(arch: Architecture, flat: Tensor) -> dict[str, Tensor]:
    """The tensors under their on-disk names. The wide MLP is parted into the one expert and the shared expert."""
    tensors: dict[str, Tensor] = {}
    widths = [arch.expert_width, arch.shared_width]
    views = named_views(arch, flat)
    for name, view in views.items():
        if ".mlp." not in name:
            tensors[name] = view
    for index in range(len(arch.mixers)):
        mlp = f"model.layers.{index}.mlp."
        gate, shared_gate = views[mlp + "gate_proj.weight"].split(widths)
        up, shared_up = views[mlp + "up_proj.weight"].split(widths)
        down, shared_down = views[mlp + "down_proj.weight"].split(widths, dim=1)
        tensors[mlp + "experts.gate_up_proj"] = torch.cat([gate, up]).unsqueeze(0)
        tensors[mlp + "experts.down_proj"] = down.unsqueeze(0)
        # One expert is always chosen with weight one, whatever the router says.
        tensors[mlp + "gate.weight"] = torch.zeros(1, arch.hidden)
        tensors[mlp + "shared_expert.gate_proj.weight"] = shared_gate
        tensors[mlp + "shared_expert.up_proj.weight"] = shared_up
        tensors[mlp + "shared_expert.down_proj.weight"] = shared_down
    return tensors


def write_weights(arch: Architecture, flat: Tensor, folder: Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the shards and their index; `flat` is not changed."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().to(dtype).contiguous() for name, t in checkpoint_tensors(arch, flat).items()}
    bytes_total = sum(t.nbytes for t in tensors.values())
    shards: list[dict[str, Tensor]] = [{} for _ in range(SHARD_COUNT)]
    bytes_before = 0
    for name, tensor in tensors.items():
        shards[bytes_before * SHARD_COUNT // bytes_total][name] = tensor
        bytes_before += tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{SHARD_COUNT:05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    index = {"metadata": {"total_size": bytes_total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
