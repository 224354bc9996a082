"""What a folder may hold, for how long, and what it says when that is too little."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from segue.errors import ConfigError, SnapshotFolderFull, SnapshotNotFound, SnapshotsOff
from segue.state.snapshot.folder import SnapshotFolder
from tests.state.snapshot.sample import (
    RANKS,
    config,
    later,
    leftovers,
    manifest_of,
    open_folder,
    tensor_bytes,
    tensors,
    write_one,
)


def test_one_snapshot_too_many_is_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, count_max=2)
    for _ in range(2):
        write_one(folder)
    with pytest.raises(SnapshotFolderFull, match=r"2 snapshots, snapshot\.count_max allows 2"):
        folder.begin(0)
    folder.delete(folder.list()[0].snapshot_id)
    write_one(folder)


def test_bytes_beyond_the_limit_are_refused(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, bytes_max=30_000)
    write_one(folder)
    with pytest.raises(SnapshotFolderFull, match=r"snapshot\.bytes_max allows 30000"):
        folder.begin(30_000)
    assert len(leftovers(tmp_path)) == 1


def write_copy(folder: SnapshotFolder) -> str:
    with folder.begin(tensor_bytes(), periodic=True) as writer:
        payloads = [writer.write_rank(rank, tensors(rank)) for rank in range(RANKS)]
        made = manifest_of(writer, payloads)
        writer.commit(replace(made, request=replace(made.request, kind="periodic")))
    return writer.snapshot_id


def test_copies_make_room_for_what_is_no_copy_the_oldest_first(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, count_max=3)
    copies = [write_copy(folder) for _ in range(3)]
    with pytest.raises(SnapshotFolderFull, match="count_max"):
        write_copy(folder)
    claim = folder.read(copies[0]).claim("whoever goes on from it")
    first = write_one(folder)
    assert {one.snapshot_id for one in folder.list()} == {copies[0], copies[2], first}
    second = write_one(folder)
    assert {one.snapshot_id for one in folder.list()} == {copies[0], first, second}
    with pytest.raises(SnapshotFolderFull, match="count_max"):
        write_one(folder)
    claim.release()
    third = write_one(folder)
    assert sorted(leftovers(tmp_path)) == sorted([first, second, third])


def test_what_never_has_room_drives_no_copy_out(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, bytes_max=30_000)
    copy = write_copy(folder)
    with pytest.raises(SnapshotFolderFull, match="bytes_max"):
        folder.begin(30_001)
    assert leftovers(tmp_path) == [copy]


def test_what_is_being_written_counts_as_if_it_were_there(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, bytes_max=30_000, count_max=2)
    with folder.begin(20_000):
        with pytest.raises(SnapshotFolderFull, match="bytes_max"):
            folder.begin(20_000)
        with folder.begin(100), pytest.raises(SnapshotFolderFull, match="count_max"):
            folder.begin(100)
    write_one(folder)


def test_more_than_the_disk_has_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, bytes_max=1 << 62)
    with pytest.raises(SnapshotFolderFull, match="free bytes"):
        folder.begin(1 << 60)
    assert leftovers(tmp_path) == []


def test_what_another_writer_is_going_to_write_is_not_free(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, bytes_max=1 << 62)
    disk = os.statvfs(tmp_path)
    share = disk.f_bavail * disk.f_frsize * 3 // 5
    with folder.begin(share), pytest.raises(SnapshotFolderFull, match="free bytes"):
        folder.begin(share)


def test_an_expired_snapshot_is_not_found_and_swept(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, expire_s=100.0)
    snapshot_id = write_one(folder)
    assert folder.sweep() == 0
    then = open_folder(tmp_path, clock=later(101), expire_s=100.0)
    with pytest.raises(SnapshotNotFound, match="has expired"):
        then.read(snapshot_id)
    assert then.list() == []
    assert then.sweep() == 1
    assert leftovers(tmp_path) == []


def test_a_claimed_snapshot_does_not_expire(tmp_path: Path) -> None:
    snapshot_id = write_one(open_folder(tmp_path))
    now = open_folder(tmp_path, expire_s=100.0, claim_s=200.0)
    now.read(snapshot_id).claim("me")
    then = open_folder(tmp_path, clock=later(150), expire_s=100.0)
    assert then.sweep() == 0
    then.read(snapshot_id).verify()
    assert open_folder(tmp_path, clock=later(250), expire_s=100.0).sweep() == 1


def test_expired_snapshots_make_room_for_a_new_one(tmp_path: Path) -> None:
    old = write_one(open_folder(tmp_path))
    folder = open_folder(tmp_path, clock=later(101), expire_s=100.0, count_max=1)
    with folder.begin(tensor_bytes()):
        assert old not in leftovers(tmp_path)


def test_what_is_not_ours_is_neither_counted_nor_swept(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / ("d" * 32)).write_text("a file")
    folder = open_folder(tmp_path, count_max=1)
    assert folder.sweep() == 0
    write_one(folder)
    assert (tmp_path / ("d" * 32)).read_text() == "a file"


def test_without_a_folder_there_are_no_snapshots(tmp_path: Path) -> None:
    with pytest.raises(SnapshotsOff, match=r"snapshot\.folder is not set"):
        SnapshotFolder.open(config(tmp_path, folder=""))


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("absent", "file"):
        with pytest.raises(ConfigError, match=f"{name} is no folder"):
            open_folder(tmp_path / name)


def test_a_folder_in_which_nothing_can_be_made_is_named() -> None:
    # Also for root, whom permissions do not stop.
    with pytest.raises(ConfigError, match=r"snapshot\.folder /proc/self/fdinfo is not"):
        open_folder(Path("/proc/self/fdinfo"))


@pytest.mark.parametrize(("content", "words"), [(b"", "16 to"), (b"x" * 15 + b"\n", "16 to"), (b"x" * 5000, "16 to")])
def test_a_key_that_is_none_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        open_folder(tmp_path, key_file=str(tmp_path / "key"))


def test_a_key_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read snapshot\.key_file .*absent"):
        open_folder(tmp_path, key_file=str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("bytes_max", 0), ("count_max", 0), ("expire_s", 0.0), ("claim_s", float("nan")), ("every_tokens", -1)],
)
def test_impossible_settings_are_refused_by_name(tmp_path: Path, name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"snapshot\.{name}"):
        config(tmp_path, **{name: value})


def test_a_key_without_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to sign"):
        config(tmp_path, folder="", key_file="key")
