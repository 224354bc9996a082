"""One process at a time may continue a snapshot, and only once."""

import json
import os
from pathlib import Path

import pytest

from segue.errors import SnapshotClaimed, SnapshotNotFound
from segue.state.snapshot.folder import SnapshotFolder
from tests.state.snapshot.processes import answers
from tests.state.snapshot.sample import later, leftovers, open_folder, write_one

LEASE_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    return open_folder(tmp_path, claim_s=LEASE_S)


def test_a_second_claim_is_refused_naming_owner_and_time(folder: SnapshotFolder) -> None:
    snapshot_id = write_one(folder)
    folder.read(snapshot_id).claim("worker a")
    for owner in ("worker b", "worker a"):
        with pytest.raises(SnapshotClaimed, match=r"claimed by worker a until \d{4}-\d\d-\d\dT"):
            folder.read(snapshot_id).claim(owner)
    assert folder.list()[0].claimed_by == "worker a"


def test_a_claimed_snapshot_can_be_read_but_not_deleted(folder: SnapshotFolder) -> None:
    snapshot_id = write_one(folder)
    folder.read(snapshot_id).claim("worker a")
    folder.read(snapshot_id).verify()
    with pytest.raises(SnapshotClaimed):
        folder.delete(snapshot_id)


def test_a_released_snapshot_is_whole_and_free(folder: SnapshotFolder) -> None:
    snapshot_id = write_one(folder)
    folder.read(snapshot_id).claim("worker a").release()
    folder.read(snapshot_id).verify()
    folder.read(snapshot_id).claim("worker b")


def test_a_consumed_snapshot_is_gone_for_everybody(folder: SnapshotFolder, tmp_path: Path) -> None:
    snapshot = folder.read(write_one(folder))
    snapshot.claim("worker a").consume()
    assert leftovers(tmp_path) == []
    for use in (snapshot.verify, lambda: snapshot.load(0), lambda: snapshot.claim("worker b")):
        with pytest.raises(SnapshotNotFound, match="any more"):
            use()
    with pytest.raises(SnapshotNotFound):
        folder.read(snapshot.manifest.snapshot_id)


def test_a_claim_is_consumed_once(folder: SnapshotFolder) -> None:
    claim = folder.read(write_one(folder)).claim("worker a")
    claim.consume()
    for use in (claim.consume, claim.renew):
        with pytest.raises(SnapshotNotFound):
            use()
    claim.release()


def test_a_claim_that_ran_out_may_be_taken_over_and_its_owner_then_has_nothing(
    folder: SnapshotFolder, tmp_path: Path
) -> None:
    snapshot_id = write_one(folder)
    stale = folder.read(snapshot_id).claim("worker a")
    fresh = open_folder(tmp_path, clock=later(LEASE_S + 1)).read(snapshot_id).claim("worker b")
    for use in (stale.renew, stale.consume):
        with pytest.raises(SnapshotClaimed, match="claimed by worker b"):
            use()
    stale.release()
    assert folder.list()[0].claimed_by == "worker b"
    fresh.consume()


def test_a_claim_that_ran_out_is_good_while_nobody_took_over(tmp_path: Path) -> None:
    now = [1000.0]
    folder = open_folder(tmp_path, clock=lambda: now[0], claim_s=LEASE_S)
    snapshot_id = write_one(folder)
    claim = folder.read(snapshot_id).claim("worker a")
    now[0] += LEASE_S + 1
    claim.renew()
    assert claim.until_s == now[0] + LEASE_S
    with pytest.raises(SnapshotClaimed):
        folder.read(snapshot_id).claim("worker b")
    now[0] += LEASE_S + 1
    claim.consume()


def test_a_renewed_claim_stands_longer(tmp_path: Path) -> None:
    now = [1000.0]
    folder = open_folder(tmp_path, clock=lambda: now[0], claim_s=LEASE_S)
    snapshot_id = write_one(folder)
    claim = folder.read(snapshot_id).claim("worker a")
    now[0] += LEASE_S - 1
    claim.renew()
    now[0] += LEASE_S - 1
    with pytest.raises(SnapshotClaimed):
        folder.read(snapshot_id).claim("worker b")


def test_a_released_claim_cannot_be_used(folder: SnapshotFolder) -> None:
    claim = folder.read(write_one(folder)).claim("worker a")
    claim.release()
    for use in (claim.consume, claim.renew):
        with pytest.raises(SnapshotNotFound, match="not claimed by worker a any more"):
            use()


@pytest.mark.parametrize("spoilt", [b"{", b"x" * 1024, b"x" * 2000, b"{}", json.dumps({"owner": 1}).encode()])
def test_a_claim_that_cannot_be_read_stands_for_a_lease_from_when_it_was_written(
    folder: SnapshotFolder, tmp_path: Path, spoilt: bytes
) -> None:
    snapshot_id = write_one(folder)
    (tmp_path / snapshot_id / "claim").write_bytes(spoilt)
    with pytest.raises(SnapshotClaimed, match="somebody unknown"):
        folder.read(snapshot_id).claim("worker b")
    os.utime(tmp_path / snapshot_id / "claim", (1.0, 1.0))
    folder.read(snapshot_id).claim("worker b")


def test_a_claim_takes_no_room_that_is_not_there_already(folder: SnapshotFolder, tmp_path: Path) -> None:
    snapshot_id = write_one(folder)
    before = (tmp_path / snapshot_id / "claim").stat()
    claim = folder.read(snapshot_id).claim("w" * 128)
    claim.renew()
    after = (tmp_path / snapshot_id / "claim").stat()
    assert (after.st_ino, after.st_size, after.st_blocks) == (before.st_ino, before.st_size, before.st_blocks)
    assert folder.list()[0].claimed_by == "w" * 128


def test_of_two_processes_that_race_for_a_claim_one_wins(folder: SnapshotFolder, tmp_path: Path) -> None:
    """The first round is for a free snapshot, each later one for a claim that has run out."""
    snapshot_id = write_one(folder)
    rounds = answers("race", str(tmp_path), snapshot_id, str(LEASE_S))
    assert len(rounds) == 20
    assert all(sorted(outcome) == ["claimed", "won"] for outcome in rounds)
    assert folder.read(snapshot_id).manifest.snapshot_id == snapshot_id
