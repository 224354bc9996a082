"""Whatever is not what was written is refused by name, and left as it is."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from segue.errors import (
    ConfigError,
    ServingError,
    SnapshotDigestMismatch,
    SnapshotForeign,
    SnapshotManifestInvalid,
    SnapshotNotFound,
    SnapshotVersionMismatch,
)
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.manifest import manifest_from_json
from segue.state.snapshot.marker import MARKER_BYTES_MAX
from tests.state.snapshot.sample import leftovers, open_folder, write_one

SECRET = "a secret of sixteen bytes"


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def _of(name: str) -> Callable[[Path], Path]:
    return lambda folder: folder / name


RANK = _of("rank-0.safetensors")
PAYLOAD_DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut by a byte": (lambda folder: os.truncate(RANK(folder), RANK(folder).stat().st_size - 1), "bytes, its manifest"),
    "cut to nothing": (lambda folder: os.truncate(RANK(folder), 0), "has 0 bytes"),
    "longer": (lambda folder: os.truncate(RANK(folder), RANK(folder).stat().st_size + 1), "bytes, its manifest"),
    "a bit of its last tensor": (lambda folder: _flip(RANK(folder), -1), r"'full.pages' in rank-0\.safetensors"),
    "a bit of its header": (lambda folder: _flip(RANK(folder), 40), "header of rank 0"),
    "a bit of its header's length": (lambda folder: _flip(RANK(folder), 0), "header of rank 0"),
    "a bit of the padding": (lambda folder: _flip(RANK(folder), 7), "header of rank 0"),
    "ranks swapped": (lambda folder: _swap(RANK(folder), folder / "rank-1.safetensors"), "header of rank 0"),
    "missing": (lambda folder: RANK(folder).unlink(), r"rank-0\.safetensors of snapshot \w+ is missing"),
}


@pytest.mark.parametrize("damage", PAYLOAD_DAMAGE)
def test_a_payload_that_is_not_what_was_written_is_refused(tmp_path: Path, damage: str) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    inflict, words = PAYLOAD_DAMAGE[damage]
    inflict(tmp_path / snapshot_id)
    snapshot = folder.read(snapshot_id)
    with pytest.raises(SnapshotDigestMismatch, match=words):
        snapshot.load(0)
    with pytest.raises(SnapshotDigestMismatch, match=words):
        snapshot.verify()
    if damage != "ranks swapped":
        assert snapshot.load(1)


def test_every_single_bit_of_a_small_payload_counts(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder, ranks=1)
    path = tmp_path / snapshot_id / "rank-0.safetensors"
    snapshot = folder.read(snapshot_id)
    for at in range(0, path.stat().st_size, 97):
        _flip(path, at)
        with pytest.raises(SnapshotDigestMismatch):
            snapshot.verify()
        _flip(path, at)
    snapshot.verify()


def test_swapped_tensors_are_refused_when_headers_are_swapped_back(tmp_path: Path) -> None:
    """The rank is in each digest too: equal headers would not help."""
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    files = [tmp_path / snapshot_id / f"rank-{rank}.safetensors" for rank in range(2)]
    payloads = folder.read(snapshot_id).manifest.payloads
    contents = [path.read_bytes() for path in files]
    for rank in range(2):
        start = payloads[rank].bytes - payloads[rank].data_bytes
        files[rank].write_bytes(contents[rank][:start] + contents[1 - rank][start:])
    with pytest.raises(SnapshotDigestMismatch, match="digest"):
        folder.read(snapshot_id).load(0)
    # Both ranks have the same bytes here: none.
    empty = [tensor.digest for payload in payloads for tensor in payload.tensors if tensor.name == "window"]
    assert empty[0] != empty[1]


MANIFEST_DAMAGE: dict[str, tuple[Callable[[Path], object], type[ServingError], str]] = {
    "a bit of the manifest": (lambda folder: _flip(folder / "manifest.json", 300), SnapshotManifestInvalid, "digest"),
    "a manifest cut": (lambda folder: os.truncate(folder / "manifest.json", 99), SnapshotManifestInvalid, "digest"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), SnapshotManifestInvalid, "missing"),
    "an empty marker": (lambda folder: os.truncate(folder / "committed", 0), SnapshotManifestInvalid, "not valid JSON"),
    "a marker of another size": (
        lambda folder: os.truncate(folder / "committed", MARKER_BYTES_MAX + 1),
        SnapshotManifestInvalid,
        "longer than",
    ),
    "no marker": (lambda folder: (folder / "committed").unlink(), SnapshotNotFound, "there is no snapshot"),
    "another version": (
        lambda folder: _replace(folder / "committed", '"version":1', '"version":2'),
        SnapshotVersionMismatch,
        "version 2, this build reads 1",
    ),
    "an unknown field": (
        lambda folder: _replace(folder / "committed", '"version":1', '"version":1,"more":1'),
        SnapshotManifestInvalid,
        "unknown field 'more'",
    ),
    "a field twice": (
        lambda folder: _replace(folder / "committed", '"version":1', '"version":1,"version":1'),
        SnapshotManifestInvalid,
        "twice",
    ),
}


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize("damage", MANIFEST_DAMAGE)
def test_a_manifest_or_marker_that_is_not_what_was_committed_is_refused(tmp_path: Path, damage: str) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    inflict, error, words = MANIFEST_DAMAGE[damage]
    inflict(tmp_path / snapshot_id)
    with pytest.raises(error, match=words):
        folder.read(snapshot_id)
    assert leftovers(tmp_path) == [snapshot_id]


def test_a_broken_marker_is_listed_with_the_reason_and_can_be_deleted(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    _flip(tmp_path / snapshot_id / "committed", 0)
    (found,) = folder.list()
    assert (found.snapshot_id, found.refused) == (snapshot_id, "snapshot_manifest_invalid")
    folder.delete(snapshot_id)
    assert leftovers(tmp_path) == []


def test_a_snapshot_under_another_id_is_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    other = "0" * 32
    (tmp_path / write_one(folder)).rename(tmp_path / other)
    with pytest.raises(SnapshotManifestInvalid, match="that of another"):
        folder.read(other)
    assert folder.list()[0].refused == "snapshot_manifest_invalid"


@pytest.mark.parametrize(
    "trick",
    ["", ".", "..", "../x", "/etc", "a" * 31, "A" * 32, "a" * 33, "a" * 32 + "\n", "a" * 31 + "/", "\0" * 32, "é" * 32],
)
def test_what_is_no_id_is_never_looked_for(tmp_path: Path, trick: str) -> None:
    folder = open_folder(tmp_path)
    for asked in (folder.read, folder.delete):
        with pytest.raises(SnapshotNotFound, match="there is no snapshot"):
            asked(trick)


def test_a_link_to_a_snapshot_is_none(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    link = "b" * 32
    (tmp_path / link).symlink_to(tmp_path / write_one(folder))
    with pytest.raises(SnapshotNotFound):
        folder.read(link)
    assert len(folder.list()) == 1


@pytest.mark.parametrize("name", ["rank-0.safetensors", "manifest.json", "claim"])
def test_a_pipe_in_a_file_s_place_blocks_nobody(tmp_path: Path, name: str) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    (tmp_path / snapshot_id / name).unlink()
    os.mkfifo(tmp_path / snapshot_id / name)
    with pytest.raises(ServingError, match=r"not a regular file|somebody unknown"):
        folder.read(snapshot_id).claim("me") if name == "claim" else folder.read(snapshot_id).load(0)
    assert len(folder.list()) == 1


def test_a_signed_snapshot_is_read_with_its_key_only(tmp_path: Path) -> None:
    keys = [tmp_path / "one.key", tmp_path / "other.key"]
    keys[0].write_text(SECRET + "\n")
    keys[1].write_text(SECRET[::-1])
    root = tmp_path / "snapshots"
    root.mkdir()
    signing = open_folder(root, key_file=str(keys[0]))
    signed = write_one(signing)
    signing.read(signed).verify()
    unsigned = write_one(open_folder(root))
    for key, snapshot_id, words in ((keys[1], signed, "another key"), (keys[0], unsigned, "is unsigned")):
        with pytest.raises(SnapshotForeign, match=words):
            open_folder(root, key_file=str(key)).read(snapshot_id)
    assert {found.refused for found in signing.list()} == {None, "snapshot_foreign"}


def test_a_signed_manifest_cannot_be_changed_with_its_marker(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    root = tmp_path / "snapshots"
    root.mkdir()
    folder = open_folder(root, key_file=str(key))
    snapshot_id = write_one(folder)
    _replace(root / snapshot_id / "committed", "req-1", "req-2")
    with pytest.raises(SnapshotForeign, match="changed since"):
        folder.read(snapshot_id)


def _at(*path: "str | int") -> Callable[[object], object]:
    def find(value: object) -> object:
        for step in path:
            value = value[step]  # type: ignore[index]
        return value

    return find


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("version",), 2, "format version 2"),
        (("version",), True, r"version is True"),
        (("created_s",), None, "created_s"),
        (("build",), 3, "build is 3"),
        (("request", "kind"), "move", "none of export, parked, copy, periodic"),
        (("request", "prompt"), [], "no prompt"),
        (("request", "prompt", 1), -1, r"prompt\[1\] is -1"),
        (("request", "prompt", 1), 1 << 32, "32 bits"),
        (("request", "prompt", 1), 1.0, r"prompt\[1\] is 1\.0"),
        (("request", "output", 0), [1, None], "2 parts instead of 3"),
        (("request", "output", 0, 1), "much", "not a number"),
        (("request", "output", 0, 2, 0), [1], "1 parts instead of 2"),
        (("request", "sampling"), [], "sampling is not an object"),
        (("request", "extension"), "0", "not hexadecimal"),
        (("request", "served"), 3, "more tokens were served"),
        (("request", "cached_tokens"), 4, "served or cached"),
        (("request", "priority"), 1 << 70, "priority"),
        (("state", "computed"), 5, "5 are computed"),
        (("state", "computed"), 1 << 80, "computed"),
        (("state", "tp_size"), 3, "2 payloads for 3 ranks"),
        (("state", "page_tokens"), 0, "page_tokens is 0"),
        (("state", "window"), "x", "window"),
        (("state", "identity", "weights"), 1, "not a text"),
        (("state", "components", "full"), [3, 1], r"not positions"),
        (("state", "components", "full"), [0, 9], "beyond the 4 computed"),
        (("payloads", 0, "rank"), 1, "not that of rank 0"),
        (("payloads", 0, "file"), "../x", "not that of rank 0"),
        (("payloads", 0, "bytes"), 1, "its tensors make"),
        (("payloads", 0, "tensors", 0, "name"), "__metadata__", "not a tensor's name"),
        (("payloads", 0, "tensors", 1, "name"), "recurrent", "two tensors of one name"),
        (("payloads", 0, "tensors", 0, "dtype"), "F4", "of type 'F4'"),
        (("payloads", 0, "tensors", 0, "shape"), [1 << 62, 4], "does not fit its type and shape"),
        (("payloads", 0, "tensors", 0, "shape"), [1] * 17, "17 dimensions"),
        (("payloads", 0, "tensors", 0, "range"), [24, 0], "does not fit"),
        (("payloads", 0, "tensors", 0, "range"), [8, 32], "begins at 8 instead of 0"),
        (("payloads", 0, "tensors", 0, "digest"), "00", "not a digest"),
    ],
)
def test_a_manifest_that_contradicts_the_format_or_itself_is_refused(
    tmp_path: Path, path: "tuple[str | int, ...]", value: object, words: str
) -> None:
    written = json.loads((tmp_path / write_one(open_folder(tmp_path)) / "manifest.json").read_bytes())
    target = _at(*path[:-1])(written)
    assert isinstance(target, dict | list)
    target[path[-1]] = value  # type: ignore[index]
    with pytest.raises((SnapshotManifestInvalid, SnapshotVersionMismatch), match=words):
        manifest_from_json(json.dumps(written).encode(), "it")


@pytest.mark.parametrize("path", [(), ("request",), ("state",), ("payloads", 0), ("payloads", 0, "tensors", 0)])
def test_no_field_is_missing_and_none_is_unknown(tmp_path: Path, path: "tuple[str | int, ...]") -> None:
    raw = (tmp_path / write_one(open_folder(tmp_path)) / "manifest.json").read_bytes()
    names = list(_at(*path)(json.loads(raw)))  # type: ignore[call-overload]
    for name in names:
        written = json.loads(raw)
        del _at(*path)(written)[name]  # type: ignore[attr-defined]
        with pytest.raises(SnapshotManifestInvalid, match=f"has no '{name}'"):
            manifest_from_json(json.dumps(written).encode(), "it")
    written = json.loads(raw)
    _at(*path)(written)["more"] = 1  # type: ignore[index]
    with pytest.raises(SnapshotManifestInvalid, match="unknown field 'more'"):
        manifest_from_json(json.dumps(written).encode(), "it")


@pytest.mark.parametrize("raw", [b"", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"version": NaN}', b"1" * 5000])
def test_what_is_no_json_object_is_refused(raw: bytes) -> None:
    with pytest.raises(SnapshotManifestInvalid):
        manifest_from_json(raw, "it")


def test_a_folder_that_others_can_write_is_refused_unless_snapshots_are_signed(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others"):
        SnapshotFolder.open(SnapshotConfig(folder=str(tmp_path)))
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef")
    SnapshotFolder.open(SnapshotConfig(folder=str(tmp_path), key_file=str(key)))
