"""A snapshot comes back as it was written, to us and to whoever reads safetensors."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from segue.errors import SnapshotManifestInvalid
from segue.state.snapshot.manifest import manifest_from_json, manifest_json
from segue.state.snapshot.payload import CHUNK_BYTES, PayloadTensor
from tests.state.snapshot.sample import (
    REQUEST,
    STATE,
    leftovers,
    manifest_of,
    open_folder,
    same,
    tensor_bytes,
    tensors,
    write_one,
)


def test_every_tensor_of_every_rank_comes_back(tmp_path: Path) -> None:
    snapshot = open_folder(tmp_path).read(write_one(open_folder(tmp_path)))
    for rank in range(2):
        found = snapshot.load(rank)
        assert sorted(found) == sorted(tensor.name for tensor in tensors(rank))
        assert all(same(found[tensor.name], tensor) for tensor in tensors(rank))
    snapshot.verify()


def test_the_manifest_comes_back_exactly(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    manifest = folder.read(write_one(folder)).manifest
    assert (manifest.request, manifest.state) == (REQUEST, STATE)
    assert manifest_from_json(manifest_json(manifest), "it") == manifest


def test_a_logprob_that_is_no_number_comes_back_as_that(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    raw = (tmp_path / write_one(folder) / "manifest.json").read_text()
    read = manifest_from_json(raw.replace("-0.1,[[7", '"nan",[[7').encode(), "it")
    assert str(read.request.output[0].logprob) == "nan"


def test_tensors_of_more_than_one_chunk_come_back(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    sizes = (CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES)
    random = np.random.default_rng(0)
    written = [
        PayloadTensor(f"t{size}", "U8", (size,), random.integers(0, 256, size, dtype=np.uint8)) for size in sizes
    ]
    with folder.begin(sum(sizes)) as writer:
        writer.commit(manifest_of(writer, [writer.write_rank(0, written)]))
    found = folder.read(writer.snapshot_id).load(0)
    assert all(same(found[tensor.name], tensor) for tensor in written)


def test_a_rank_without_tensors_is_a_rank(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with folder.begin(0) as writer:
        writer.commit(manifest_of(writer, [writer.write_rank(0, [])]))
    assert folder.read(writer.snapshot_id).load(0) == {}


def test_every_tensor_begins_at_a_multiple_of_its_items(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    payload = folder.read(write_one(folder)).manifest.payloads[0]
    starts = {tensor.name: tensor.start for tensor in payload.tensors}
    assert starts["recurrent"] % 4 == 0
    assert starts["conv"] % 2 == 0
    assert (payload.bytes - payload.data_bytes) % 8 == 0


def test_anybody_reads_a_payload_with_safetensors(tmp_path: Path) -> None:
    snapshot_id = write_one(open_folder(tmp_path))
    path = tmp_path / snapshot_id / "rank-1.safetensors"
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "segue-snapshot", "snapshot": snapshot_id, "rank": "1"}
        assert set(file.keys()) == {tensor.name for tensor in tensors(1)}
        assert file.get_slice("full.pages").get_shape() == [3, 1000]
        np.testing.assert_array_equal(
            file.get_tensor("recurrent"), np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(1)
        )
        assert file.get_tensor("full.scales").tolist() == [1, 2, 3, 4, 5]


def test_a_payload_of_plain_types_is_read_whole_by_safetensors(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    kept = [tensor for tensor in tensors(0) if tensor.dtype in {"U8", "F32", "F16"}]
    with folder.begin(tensor_bytes(1)) as writer:
        writer.commit(manifest_of(writer, [writer.write_rank(0, kept)]))
    found = load_file(tmp_path / writer.snapshot_id / "rank-0.safetensors")
    assert {name: array.tobytes() for name, array in found.items()} == {t.name: bytes(t.view) for t in kept}


def test_only_the_owner_may_read_what_people_wrote(tmp_path: Path) -> None:
    snapshot_id = write_one(open_folder(tmp_path))
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / snapshot_id).iterdir()]
    assert set(modes) == {0o600}
    assert stat.S_IMODE((tmp_path / snapshot_id).stat().st_mode) == 0o700


def test_a_complete_snapshot_is_these_files(tmp_path: Path) -> None:
    snapshot_id = write_one(open_folder(tmp_path))
    assert leftovers(tmp_path / snapshot_id) == [
        "claim",
        "committed",
        "manifest.json",
        "rank-0.safetensors",
        "rank-1.safetensors",
    ]
    assert json.loads((tmp_path / snapshot_id / "manifest.json").read_bytes())["version"] == 1


def test_a_writer_that_is_left_without_a_commit_removes_everything(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with folder.begin(tensor_bytes()) as writer:
        writer.write_rank(0, tensors(0))
        assert leftovers(tmp_path) == [writer.snapshot_id]
    assert leftovers(tmp_path) == []


def test_nothing_is_visible_before_the_commit(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with folder.begin(tensor_bytes()) as writer:
        payloads = [writer.write_rank(rank, tensors(rank)) for rank in range(2)]
        assert folder.list() == []
        writer.commit(manifest_of(writer, payloads))
        assert [summary.snapshot_id for summary in folder.list()] == [writer.snapshot_id]


def test_what_could_not_be_read_again_is_not_committed(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with folder.begin(tensor_bytes()) as writer:
        manifest = manifest_of(writer, [writer.write_rank(rank, tensors(rank)) for rank in range(2)])
        with pytest.raises(SnapshotManifestInvalid, match="request_id"):
            writer.commit(replace(manifest, request=replace(REQUEST, request_id="x" * 600)))
    assert leftovers(tmp_path) == []


def test_a_list_tells_what_there_is(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    (tmp_path / "somebody's notes").write_text("kept")
    snapshot_id = write_one(folder)
    (found,) = folder.list()
    assert (found.snapshot_id, found.request_id, found.kind, found.computed) == (snapshot_id, "req-1", "export", 4)
    assert found.bytes == sum(path.stat().st_size for path in (tmp_path / snapshot_id).iterdir())
    assert (found.claimed_by, found.refused) == (None, None)
    assert "somebody's notes" in os.listdir(tmp_path)
