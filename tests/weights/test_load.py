"""Loading the bundled model: every tensor is taken, and a folder that lacks or has one too many is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from segue.errors import CheckpointError
from segue.models.options import BuildOptions
from segue.weights.load import load_model
from segue.weights.source import LoadProgress

BUNDLED = Path(__file__).parents[2] / "segue" / "zoo" / "model"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def merged(folder: Path, extra: dict[str, torch.Tensor], without: str = "") -> Path:
    """The bundled model in one file, with tensors added or left out."""
    shutil.copy(BUNDLED / "config.json", folder / "config.json")
    tensors = {name: tensor for shard in SHARDS for name, tensor in load_file(BUNDLED / shard).items()}
    save_file({name: t for name, t in (tensors | extra).items() if name != without}, folder / "model.safetensors")
    return folder


def test_the_bundled_model_loads_and_progress_ends_at_its_last_byte() -> None:
    seen: list[LoadProgress] = []
    model = load_model(BUNDLED, BuildOptions(), seen.append)
    index = json.loads((BUNDLED / "model.safetensors.index.json").read_text())
    assert model.vocab_size == 2_048
    assert seen[-1].tensors_taken == seen[-1].tensors_total == len(index["weight_map"])
    assert seen[-1].bytes_taken == seen[-1].bytes_total == index["metadata"]["total_size"]


def test_a_model_that_lacks_a_tensor_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.norm\.weight'"):
        load_model(merged(tmp_path, {}, without="model.norm.weight"), BuildOptions())


def test_a_model_with_a_tensor_too_many_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'model\.layers\.0\.adapter'"):
        load_model(merged(tmp_path, {"model.layers.0.adapter": torch.zeros(2)}), BuildOptions())


def test_a_tied_model_may_carry_its_head_only_as_a_copy_of_its_embedding(tmp_path: Path) -> None:
    embedding = load_file(BUNDLED / SHARDS[0])["model.embed_tokens.weight"]
    load_model(merged(tmp_path, {"lm_head.weight": embedding.clone()}), BuildOptions())
    with pytest.raises(CheckpointError, match=r"'lm_head\.weight' differs"):
        load_model(merged(tmp_path, {"lm_head.weight": -embedding}), BuildOptions())
