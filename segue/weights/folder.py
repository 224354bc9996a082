"""A model folder as it is published: config.json, generation_config.json and safetensors shards; builds no model."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from segue.errors import CheckpointError
from segue.json_file import read_json_object
from segue.weights.generation import GenerationDefaults
from segue.weights.tensor_file import TensorFile

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """An opened folder: parsed configs and checked, mapped weight files."""

    path: Path
    config: Mapping[str, object]
    generation: GenerationDefaults
    files: tuple[TensorFile, ...]

    @staticmethod
    def open(path: Path) -> "ModelFolder":
        """Opens and checks all files. Raises CheckpointError naming the file or tensor that is wrong, and how."""
        if not path.is_dir():
            raise CheckpointError(f"there is no model folder {path}")
        config = read_json_object(path / "config.json")
        generation_path = path / "generation_config.json"
        generation = read_json_object(generation_path) if generation_path.exists() else {}
        return ModelFolder(path, config, GenerationDefaults.of(generation, config), _tensor_files(path))


def _tensor_files(path: Path) -> tuple[TensorFile, ...]:
    if (path / INDEX_FILE).exists():
        return _sharded_files(path)
    if not (path / SINGLE_FILE).exists():
        raise CheckpointError(f"{path} has neither {SINGLE_FILE} nor {INDEX_FILE}; the weights were not downloaded")
    return (TensorFile(path / SINGLE_FILE),)


def _sharded_files(path: Path) -> tuple[TensorFile, ...]:
    home = _weight_map(path / INDEX_FILE)
    for file_name in sorted(set(home.values())):
        if not (path / file_name).is_file():
            raise CheckpointError(f"{path / INDEX_FILE} names {file_name}, which is not there; download it again")
    files = {file_name: TensorFile(path / file_name) for file_name in sorted(set(home.values()))}
    for file_name, file in files.items():
        for name in file.tensors:
            if home.get(name) != file_name:
                raise CheckpointError(
                    f"'{name}' is in {path / file_name}, but {INDEX_FILE} puts it in {home.get(name, 'no file')}; "
                    "index and shards are of different downloads"
                )
    for name, file_name in home.items():
        if name not in files[file_name].tensors:
            raise CheckpointError(
                f"'{name}' is not in {path / file_name}, where {INDEX_FILE} puts it; download both again"
            )
    return tuple(files.values())


def _weight_map(index_path: Path) -> dict[str, str]:
    home = read_json_object(index_path).get("weight_map")
    if not isinstance(home, dict) or not home:
        raise CheckpointError(f"{index_path} has no weight_map; download it again")
    for name, file_name in home.items():
        if not isinstance(file_name, str) or not file_name or Path(file_name).name != file_name:
            raise CheckpointError(f"{index_path} puts '{name}' in {file_name!r}, which is no file name")
    return home
