"""What is known of the snapshot of one choice, from when its worker was asked for it to when another one goes on."""

import pytest

from router.metrics import Metrics
from router.snapshot_leg import KeptSnapshot, SnapshotLeg
from segue.errors import SnapshotClaimed, SnapshotFailed, SnapshotVersionMismatch


def leg() -> tuple[SnapshotLeg, list[str]]:
    discarded: list[str] = []
    return SnapshotLeg(None, discarded.append, Metrics()), discarded


def test_a_refusal_that_comes_after_the_choice_has_left_changes_nothing() -> None:
    kept, discarded = leg()
    kept.park("a")
    assert kept.leave("a")
    kept.undoubt("a")
    kept.begin()
    assert kept.offered == KeptSnapshot("a", doubtful=True)
    assert (kept.parking, kept.parked, discarded) == (True, True, [])


def test_what_was_refused_before_it_left_is_offered_to_nobody() -> None:
    kept, discarded = leg()
    kept.park("a")
    kept.undoubt("another")
    assert kept.doubtful
    kept.undoubt("a")
    kept.begin()
    kept.give_up()
    assert (kept.offered, kept.parking, discarded) == (None, False, [])


def test_a_choice_that_left_for_a_snapshot_that_somebody_asked_for_is_not_parked() -> None:
    kept, _ = leg()
    kept.doubt("a")
    assert not kept.leave("a")
    kept.park("b")
    assert not kept.leave("a")
    assert not kept.parked


def test_only_what_was_not_used_up_is_discarded() -> None:
    for restored, left in ((True, True), (True, False), (False, True), (False, False)):
        kept, discarded = leg()
        kept.park("a")
        if left:
            kept.leave("a")
        kept.begin()
        kept.accepted(restored)
        kept.give_up()
        assert discarded == ([] if restored else ["a"])
        assert (kept.offered, kept.parking, kept.parked) == (None, False, False)


def test_a_refusal_says_what_becomes_of_what_is_parked() -> None:
    kept, discarded = leg()
    kept.park("a")
    kept.leave("a")
    tries = kept.count
    assert kept.refused(SnapshotFailed("this disk"))
    assert (kept.offered, kept.count) == (KeptSnapshot("a", doubtful=True), tries + 1)
    assert not kept.refused(SnapshotClaimed("somebody"))
    assert (kept.offered, discarded) == (None, [])
    kept.park("b")
    kept.leave("b")
    assert kept.refused(SnapshotVersionMismatch("it"))
    assert (kept.offered, discarded) == (None, ["b"])


def test_one_that_is_being_parked_is_exported_by_nobody_else() -> None:
    kept, _ = leg()
    kept.park("a")
    with pytest.raises(AssertionError):
        kept.doubt("b")
