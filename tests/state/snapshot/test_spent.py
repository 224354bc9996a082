"""Notes of what was used up: who tries again learns that it was itself, and nobody continues or writes it any more."""

from pathlib import Path

import pytest

from segue.errors import SnapshotClaimed, SnapshotFailed, SnapshotNotFound
from segue.state.snapshot.names import new_id
from segue.state.snapshot.spent import KEPT_S
from tests.state.snapshot.sample import (
    later,
    leftovers,
    manifest_of,
    open_folder,
    tensor_bytes,
    tensors,
    write_one,
)

ME, OTHER = new_id(), new_id()


def test_the_next_try_takes_the_claim_of_the_last_one_at_once(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    snapshot = folder.read(write_one(folder))
    lost = snapshot.claim("worker a", ME)
    for claimant in (OTHER, None):
        with pytest.raises(SnapshotClaimed, match="worker a"):
            snapshot.claim("worker b", claimant)
    fresh = snapshot.claim("worker b", ME)
    # The first one was not dead after all: it may not go on.
    with pytest.raises(SnapshotClaimed, match="worker b"):
        lost.consume()
    lost.release()
    fresh.renew()
    fresh.consume()
    assert not folder.list()


def test_who_used_it_up_is_told_so_and_nobody_else(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    assert not folder.is_spent(snapshot_id, ME)
    folder.read(snapshot_id).claim("worker a", ME).consume()
    assert folder.is_spent(snapshot_id, ME)
    assert not folder.is_spent(snapshot_id, OTHER)
    assert not folder.is_spent("../" + snapshot_id, ME)
    with pytest.raises(SnapshotNotFound):
        folder.read(snapshot_id)
    assert folder.forbid(snapshot_id, ME)
    assert not folder.forbid(snapshot_id, OTHER)


def test_what_is_forbidden_is_never_committed(tmp_path: Path) -> None:
    folder, snapshot_id = open_folder(tmp_path), new_id()
    with folder.begin(tensor_bytes(), snapshot_id) as writer:
        payloads = [writer.write_rank(rank, tensors(rank)) for rank in range(2)]
        assert folder.forbid(snapshot_id, ME)
        with pytest.raises(SnapshotFailed, match="too late"):
            writer.commit(manifest_of(writer, payloads))
    assert folder.list() == []
    assert not (tmp_path / snapshot_id).exists()


def test_what_is_complete_is_not_forbidden(tmp_path: Path) -> None:
    folder, snapshot_id = open_folder(tmp_path), new_id()
    with folder.begin(tensor_bytes(), snapshot_id) as writer:
        writer.commit(manifest_of(writer, [writer.write_rank(rank, tensors(rank)) for rank in range(2)]))
    assert not folder.forbid(snapshot_id, ME)
    folder.read(snapshot_id).verify()


def test_a_name_is_used_once(tmp_path: Path) -> None:
    folder, snapshot_id = open_folder(tmp_path), new_id()
    with folder.begin(0, snapshot_id), pytest.raises(SnapshotFailed):
        folder.begin(0, snapshot_id)


def test_notes_go_when_nobody_can_ask_any_more(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    folder.read(write_one(folder)).claim("worker a", ME).consume()
    (tmp_path / "what.ever.spent").touch()
    assert len(leftovers(tmp_path)) == 2
    open_folder(tmp_path, clock=later(KEPT_S / 2)).sweep()
    assert len(leftovers(tmp_path)) == 2
    open_folder(tmp_path, clock=later(KEPT_S + 5)).sweep()
    assert leftovers(tmp_path) == ["what.ever.spent"]
