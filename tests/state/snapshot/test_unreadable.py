"""One entry that cannot be read keeps nobody from the others: it is listed as refused, counted, and left alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from segue.errors import SnapshotClaimed, SnapshotFailed
from tests.state.snapshot.sample import later, leftovers, open_folder, write_one
from tests.support.unprivileged import unprivileged

FAILED = SnapshotFailed.kind.code


@pytest.fixture(params=["committed", "claim", "."])
def broken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str, str]]:
    """The folder, a snapshot in it of which something may not be read, and what that is."""
    folder = open_folder(tmp_path)
    snapshot_id = write_one(folder)
    place = tmp_path / snapshot_id / request.param
    mode = place.stat().st_mode
    place.chmod(0)
    with unprivileged():
        yield tmp_path, snapshot_id, request.param
    if place.exists():
        place.chmod(mode)


def test_it_is_listed_as_refused_and_the_others_as_ever(broken: tuple[Path, str, str]) -> None:
    root, snapshot_id, _ = broken
    folder = open_folder(root)
    other = write_one(folder)
    listed = {one.snapshot_id: one for one in folder.list()}
    assert listed.keys() == {snapshot_id, other}
    assert (listed[snapshot_id].refused, listed[other].refused) == (FAILED, None)
    assert listed[other].request_id == "req-1"


def test_it_keeps_nothing_from_being_swept_or_written(broken: tuple[Path, str, str]) -> None:
    root, _, what = broken
    old = write_one(open_folder(root))
    then = open_folder(root, clock=later(101), expire_s=100.0)
    assert then.sweep() == (1 if what == "." else 2), "what can be told to have expired"
    assert old not in leftovers(root)
    write_one(open_folder(root, count_max=2))


def test_it_counts(broken: tuple[Path, str, str]) -> None:
    root, *_ = broken
    with pytest.raises(Exception, match="count_max allows 1"):
        open_folder(root, count_max=1).begin(0)


def test_it_can_be_deleted_once_nobody_can_have_a_claim_on_it(broken: tuple[Path, str, str]) -> None:
    root, snapshot_id, what = broken
    if what == "claim":
        with pytest.raises(SnapshotClaimed, match="somebody unknown"):
            open_folder(root).delete(snapshot_id)
    then = open_folder(root, clock=later(61), claim_s=60.0)
    if what == ".":
        with pytest.raises(SnapshotFailed):
            then.delete(snapshot_id)
        return
    then.delete(snapshot_id)
    assert leftovers(root) == []
