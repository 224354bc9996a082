"""kill -9 at any point of writing or of using up: what is left is complete, or invisible and swept."""

import random
import signal
from pathlib import Path

import pytest

from segue.errors import SnapshotNotFound
from tests.state.snapshot.processes import answers, start
from tests.state.snapshot.sample import leftovers, open_folder, write_one

KILLS = 20
DENSE = 36


def _kill(tmp_path: Path, what: str, latest: float) -> list[Path]:
    """Folders that a process died in, at random points, and at many from `latest` on, where most happens."""
    dense = {latest + (1 - latest) * step / DENSE for step in range(DENSE)}
    points = sorted({random.random() for _ in range(KILLS)} | dense)
    (total,), *outcomes = answers(what, str(tmp_path), *map(str, points))
    print(f"{what}: killed at {[at for _, at, _ in outcomes]} of {total} calls and returns")
    codes = [int(code) for _, _, code in outcomes]
    # A process may make a few calls less than the one that was counted, and then ends by itself.
    assert set(codes) <= {-signal.SIGKILL, 0}
    assert codes.count(-signal.SIGKILL) >= KILLS
    return [tmp_path / point for point, _, _ in outcomes]


@pytest.mark.long
def test_a_snapshot_whose_writer_is_killed_is_complete_or_invisible_and_swept(tmp_path: Path) -> None:
    complete = 0
    for root in _kill(tmp_path, "die-writing", 0.9):
        folder = open_folder(root)
        before = [found.snapshot_id for found in folder.list()]
        for snapshot_id in before:
            folder.read(snapshot_id).verify()
            folder.read(snapshot_id).claim("next").consume()
        complete += len(before)
        folder.sweep()
        assert leftovers(root) == []
        folder.read(write_one(folder)).verify()
    assert 0 < complete < KILLS + DENSE


@pytest.mark.long
def test_a_snapshot_whose_consumer_is_killed_is_complete_or_invisible_and_swept(tmp_path: Path) -> None:
    gone = 0
    for root in _kill(tmp_path, "die-consuming", 0.9):
        folder = open_folder(root)
        left = folder.list()
        for found in left:
            folder.read(found.snapshot_id).verify()
            if not found.claimed_by:
                folder.read(found.snapshot_id).claim("next").consume()
        gone += not left
        folder.sweep()
        # A claim that its dead owner had stands until it runs out: nobody can tell yet that it is dead.
        assert leftovers(root) == [found.snapshot_id for found in left if found.claimed_by]
    assert 0 < gone < KILLS + DENSE


def test_a_writer_of_another_process_is_not_swept(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with start("hold", str(tmp_path)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        snapshot_id = process.stdout.readline().strip()
        assert folder.sweep() == 0
        assert folder.list() == []
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.wait(60) == 0
    folder.read(snapshot_id).verify()


def test_what_a_killed_writer_left_is_swept_at_once(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with start("hold", str(tmp_path)) as process:
        assert process.stdout is not None
        snapshot_id = process.stdout.readline().strip()
        process.kill()
        process.wait(60)
    assert leftovers(tmp_path) == [snapshot_id]
    assert folder.sweep() == 1
    assert leftovers(tmp_path) == []


def test_a_writer_whose_folder_is_kept_by_nobody_else_is_found_by_the_next_begin(tmp_path: Path) -> None:
    (tmp_path / ("c" * 32)).mkdir()
    folder = open_folder(tmp_path, count_max=1)
    folder.read(write_one(folder)).claim("me").consume()
    assert leftovers(tmp_path) == []


def test_half_a_removal_is_no_snapshot_and_swept(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    (tmp_path / snapshot_id / "committed").unlink()
    (tmp_path / snapshot_id / "rank-0.safetensors").unlink()
    try:
        folder.read(snapshot_id)
    except SnapshotNotFound:
        assert folder.sweep() == 1
    assert leftovers(tmp_path) == []
