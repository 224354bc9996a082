"""Taking tensors by name: what is missing, misshapen or left over is refused by name."""

from pathlib import Path

import pytest
import torch

from segue.errors import CheckpointError
from segue.weights.folder import ModelFolder
from segue.weights.source import LoadProgress, WeightSource
from tests.weights.folders import EMBEDDING, NORM, small_tensors, write_sharded, write_single

HEAD = "lm_head.weight"
UP = "model.layers.0.mlp.up_proj.weight"


def source_of(folder: Path, tensors: dict[str, torch.Tensor]) -> WeightSource:
    return WeightSource(ModelFolder.open(write_single(folder, tensors)).files)


def test_tensors_are_taken_from_every_shard_and_nothing_is_left(tmp_path: Path) -> None:
    source = WeightSource(ModelFolder.open(write_sharded(tmp_path, small_tensors())).files)
    for name, tensor in small_tensors().items():
        assert torch.equal(source.take(name, *tensor.shape), tensor)
    source.finish()


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_a_nested_text_model_has_plain_names(tmp_path: Path, prefix: str) -> None:
    nested = {name.replace("model.", prefix, 1): tensor for name, tensor in small_tensors().items()}
    source = source_of(tmp_path, nested)
    assert source.has(NORM)
    assert torch.equal(source.take(NORM, 4), small_tensors()[NORM])


def test_two_tensors_that_become_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"second tensor named '{NORM}'"):
        source_of(tmp_path, small_tensors() | {"model.language_model.norm.weight": torch.zeros(4)})


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    source = source_of(tmp_path, small_tensors())
    assert not source.has(HEAD)
    with pytest.raises(CheckpointError, match=f"no tensor '{HEAD}'"):
        source.take(HEAD, 8, 4)


def test_a_wrong_shape_is_named_with_file_and_both_shapes(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors is \(4,\), config\.json calls for \(5,\)"):
        source_of(tmp_path, small_tensors()).take(NORM, 5)


def test_surplus_tensors_are_named(tmp_path: Path) -> None:
    source = source_of(tmp_path, small_tensors())
    source.take(NORM, 4)
    with pytest.raises(CheckpointError, match=f"no place for: '{EMBEDDING}', '{UP}'"):
        source.finish()


def test_many_surplus_tensors_are_counted_rather_than_listed(tmp_path: Path) -> None:
    source = source_of(tmp_path, {f"extra.{i}": torch.zeros(1) for i in range(9)})
    with pytest.raises(CheckpointError, match=r"'extra\.4' and 4 more$"):
        source.finish()


def test_a_part_that_is_knowingly_left_out_is_no_surplus(tmp_path: Path) -> None:
    source = source_of(tmp_path, small_tensors() | {"mtp.a": torch.zeros(1), "mtp.b": torch.zeros(1)})
    source.leave("mtp.")
    source.leave("model.")
    source.finish()


def test_a_tied_head_may_repeat_the_embedding_bit_for_bit(tmp_path: Path) -> None:
    tensors = small_tensors()
    source = source_of(tmp_path, {EMBEDDING: tensors[EMBEDDING], HEAD: tensors[EMBEDDING].clone()})
    source.take(EMBEDDING, 8, 4)
    source.finish()


@pytest.mark.parametrize("change", ["value", "dtype", "shape"])
def test_a_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path, change: str) -> None:
    embedding = small_tensors()[EMBEDDING]
    head = embedding.clone()
    if change == "value":
        head[7, 3] += 1
    elif change == "dtype":
        head = head.to(torch.float16)
    else:
        head = head.reshape(4, 8)
    source = source_of(tmp_path, {EMBEDDING: embedding, HEAD: head})
    source.take(EMBEDDING, 8, 4)
    with pytest.raises(CheckpointError, match=f"'{HEAD}' differs"):
        source.finish()


def test_progress_ends_at_all_tensors_and_bytes(tmp_path: Path) -> None:
    folder = ModelFolder.open(write_single(tmp_path, small_tensors() | {"mtp.a": torch.zeros(2)}))
    seen: list[LoadProgress] = []
    source = WeightSource(folder.files, seen.append)
    for name, tensor in small_tensors().items():
        source.take(name, *tensor.shape)
    source.leave("mtp.")
    assert [progress.tensors_taken for progress in seen] == [1, 2, 3, 4]
    assert seen[-1] == LoadProgress(4, 4, 64 + 24 + 16 + 8, 64 + 24 + 16 + 8)
