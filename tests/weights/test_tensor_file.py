"""One safetensors file: read without a copy, and every way to be broken is refused by name."""

import json
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from segue.errors import CheckpointError
from segue.weights.tensor_file import TensorFile
from tests.weights.folders import EMBEDDING, small_tensors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A whole file."""
    save_file(small_tensors(), tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path / "model.safetensors"


def write_raw(path: Path, header: object, content: bytes) -> Path:
    """A file with a header of our own."""
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + content)
    return path


def test_every_tensor_reads_as_it_was_written(path: Path) -> None:
    file = TensorFile(path)
    written = small_tensors()
    assert set(file.tensors) == set(written)
    for name, tensor in written.items():
        assert file.tensors[name].shape == tuple(tensor.shape)
        assert file.read(name).dtype is tensor.dtype
        assert torch.equal(file.read(name), tensor)


def test_reading_copies_nothing_and_writing_to_it_leaves_the_file_alone(path: Path) -> None:
    before = path.read_bytes()
    file = TensorFile(path)
    assert file.read(EMBEDDING).data_ptr() == file.read(EMBEDDING).data_ptr()
    file.read(EMBEDDING).zero_()
    assert path.read_bytes() == before


def test_a_tensor_outlives_its_file_object(path: Path) -> None:
    tensor = TensorFile(path).read(EMBEDDING)
    path.unlink()
    assert torch.equal(tensor, small_tensors()[EMBEDDING])


def test_an_unaligned_tensor_reads_right(tmp_path: Path) -> None:
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    padding = next(n for n in range(8) if (8 + len(json.dumps(header | {"__metadata__": {"pad": "x" * n}}))) % 4 == 1)
    file = TensorFile(
        write_raw(tmp_path / "odd", header | {"__metadata__": {"pad": "x" * padding}}, struct.pack("<2f", 1.5, -2.5))
    )
    assert file.tensors["a"].start % 4 == 1
    assert file.read("a").data_ptr() % 4 == 0
    assert file.read("a").tolist() == [1.5, -2.5]


def test_an_empty_tensor_and_a_scalar_read_right(tmp_path: Path) -> None:
    save_file({"none": torch.zeros(0, 4), "one": torch.tensor(2.5)}, tmp_path / "file")
    file = TensorFile(tmp_path / "file")
    assert file.read("none").shape == (0, 4)
    assert file.read("one").item() == 2.5


def test_a_file_cut_anywhere_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    for length in [0, 1, 7, 8, 9, 100, len(whole) - 65, len(whole) - 1]:
        cut = tmp_path / "cut.safetensors"
        cut.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.safetensors is (cut short|empty|not a safetensors file)"):
            TensorFile(cut)


def test_a_file_with_bytes_after_the_last_tensor_is_refused(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0" * 3)
    with pytest.raises(CheckpointError, match="3 bytes follow the last tensor"):
        TensorFile(path)


def test_a_pointer_of_git_lfs_is_recognised(tmp_path: Path) -> None:
    pointer = tmp_path / "model.safetensors"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    with pytest.raises(CheckpointError, match="git-lfs"):
        TensorFile(pointer)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*absent: No such file"):
        TensorFile(tmp_path / "absent")


def test_a_dtype_that_is_not_supported_is_named_with_its_tensor(tmp_path: Path) -> None:
    header = {"w": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [0, 4]}}
    with pytest.raises(CheckpointError, match=r"'w' in .* is stored as F8_E4M3; supported are F32, BF16, F16"):
        TensorFile(write_raw(tmp_path / "fp8", header, b"1234"))


@pytest.mark.parametrize(
    "header",
    [
        [],
        {"w": 3},
        {"w": {"dtype": "F32", "shape": [1]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
        {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": ["1"], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}},
        {"w": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]}},
        {f"w{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(2)},
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path: Path, header: object) -> None:
    with pytest.raises(CheckpointError):
        TensorFile(write_raw(tmp_path / "bad", header, b"1234"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(flips=st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_header_of_random_damage_is_refused_or_reads_whole(path: Path, flips: list[tuple[int, int]]) -> None:
    spoilt = bytearray(path.read_bytes())
    for at, value in flips:
        spoilt[at % len(spoilt)] = value
    other = path.with_name("spoilt")
    other.write_bytes(spoilt)
    try:
        file = TensorFile(other)
    except CheckpointError:
        return
    for name, stored in file.tensors.items():
        assert file.read(name).shape == stored.shape
