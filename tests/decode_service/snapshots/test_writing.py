"""The thread that writes may end before the engine's notices: what that asks then is refused, or left, and harmless."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from decode_service.snapshots.images import StateImage
from decode_service.snapshots.writing import SnapshotWriting, Written
from segue.errors import SnapshotFailed
from tests.state.snapshot.sample import REQUEST, STATE, leftovers, open_folder, write_one


def test_after_the_end_nothing_is_written_or_removed_and_nothing_breaks(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    kept = write_one(folder)
    writing = SnapshotWriting(folder)
    writing.close()
    told: list[Future[Written]] = []
    future = writing.submit(StateImage(4, ({}, {})), REQUEST, STATE)
    future.add_done_callback(told.append)
    with pytest.raises(SnapshotFailed, match="the worker ends"):
        future.result(timeout=0)
    assert told == [future]
    writing.discard(kept)
    writing.close()
    writing.require_room()
    assert leftovers(tmp_path) == [kept]
