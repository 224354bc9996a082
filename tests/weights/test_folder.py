"""Opening a model folder: what is whole opens, and every defect is refused by name."""

import json
from pathlib import Path

import pytest

from segue.errors import CheckpointError
from segue.weights.folder import ModelFolder
from tests.weights.folders import EMBEDDING, NORM, small_tensors, write_index, write_sharded, write_single


def test_a_single_file_and_two_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    single = ModelFolder.open(write_single(tmp_path / "single", small_tensors()))
    sharded = ModelFolder.open(write_sharded(tmp_path / "sharded", small_tensors()))
    assert len(single.files) == 1
    assert len(sharded.files) == 2
    assert set(single.files[0].tensors) == {name for file in sharded.files for name in file.tensors}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model folder .*nowhere"):
        ModelFolder.open(tmp_path / "nowhere")


def test_a_missing_config_is_named(tmp_path: Path) -> None:
    folder = write_single(tmp_path, small_tensors())
    (folder / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*config\.json: No such file"):
        ModelFolder.open(folder)


@pytest.mark.parametrize("text", ["{", "[1]", "\xff", '{"a": ' + "[" * 100_000])
def test_a_config_that_is_no_json_object_is_named(tmp_path: Path, text: str) -> None:
    folder = write_single(tmp_path, small_tensors())
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"config\.json (is not valid JSON|holds no JSON object)"):
        ModelFolder.open(folder)


def test_a_folder_without_weights_says_so(tmp_path: Path) -> None:
    folder = write_single(tmp_path, small_tensors())
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        ModelFolder.open(folder)


def test_an_index_that_names_a_missing_file_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path, small_tensors())
    (folder / "model-2-of-2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names model-2-of-2\.safetensors, which is not there"):
        ModelFolder.open(folder)


def test_a_tensor_in_the_wrong_shard_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path, small_tensors())
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"] | {NORM: "model-1-of-2.safetensors"}
    write_index(folder, weight_map)
    with pytest.raises(CheckpointError, match=rf"'{NORM}' is in .*model-2-of-2.*puts it in model-1-of-2"):
        ModelFolder.open(folder)


def test_a_tensor_that_the_index_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path, small_tensors())
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    del weight_map[NORM]
    write_index(folder, weight_map)
    with pytest.raises(CheckpointError, match=rf"'{NORM}' is in .*puts it in no file"):
        ModelFolder.open(folder)


def test_a_tensor_that_no_shard_has_is_refused(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path, small_tensors())
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    write_index(folder, weight_map | {"model.lost": "model-1-of-2.safetensors"})
    with pytest.raises(CheckpointError, match=r"'model\.lost' is not in .*model-1-of-2"):
        ModelFolder.open(folder)


@pytest.mark.parametrize("file_name", ["../other.safetensors", "", "a/b.safetensors", 3])
def test_an_index_may_name_only_files_of_its_folder(tmp_path: Path, file_name: object) -> None:
    folder = write_sharded(tmp_path, small_tensors())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {EMBEDDING: file_name}}))
    with pytest.raises(CheckpointError, match="which is no file name"):
        ModelFolder.open(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_without_a_map_is_refused(tmp_path: Path, index: object) -> None:
    folder = write_sharded(tmp_path, small_tensors())
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="has no weight_map"):
        ModelFolder.open(folder)
