"""A running request stands still while its state is read; then it goes on, has left, or had ended meanwhile."""

import pytest

from segue.batch.ratio import RetractionRules
from segue.batch.request import FinishReason
from segue.errors import SnapshotNotReady
from segue.ids import Handle
from tests.support.policies import Rig, rig, spec

H1, H2 = Handle(1), Handle(2)


def step(made: Rig) -> list[int]:
    """Whose tokens one step brings; nobody's when there is nothing to compute."""
    record = made.engine.launch()
    if record is None:
        return []
    news = made.engine.commit(record)
    made.engine.check()
    return [int(handle) for handle in news.handles]


def two_running() -> Rig:
    made = rig()
    made.engine.submit(spec("a", 5, max_tokens=6), H1)
    made.engine.submit(spec("b", 7, max_tokens=6), H2)
    while step(made) != [1, 2]:
        pass
    return made


def test_who_is_parked_stands_still_and_goes_on_where_it_stood() -> None:
    made = two_running()
    request = made.engine.park(H1, 1)
    assert request is not None
    stood = request.computed, len(request.output)
    assert step(made) == [2]
    assert (request.computed, len(request.output)) == stood
    made.engine.unpark(H1)
    assert step(made) == [1, 2]


def test_who_leaves_is_told_of_and_keeps_its_state_until_it_is_unpinned() -> None:
    made = two_running()
    made.engine.park(H1, 1)
    made.engine.leave(H1, "s1")
    (ended,) = made.engine.take_ended()
    assert (ended.handle, ended.reason, ended.snapshot_id) == (H1, FinishReason.MOVED, "s1")
    held = [pool.held for pool in made.engine.status().pools]
    assert step(made) == [2]
    made.engine.cancel(H1, 1)
    assert made.engine.take_ended() == []
    made.engine.unpin(H1)
    made.engine.check()
    assert all(now < before for now, before in zip([p.held for p in made.engine.status().pools], held, strict=True))


def test_who_is_cancelled_while_parked_neither_goes_on_nor_leaves() -> None:
    made = two_running()
    made.engine.park(H1, 1)
    made.engine.cancel(H1, 1)
    made.engine.leave(H1)
    assert [ended.reason for ended in made.engine.take_ended()] == [FinishReason.CANCELLED]
    assert step(made) == [2]
    made.engine.unpark(H1)
    made.engine.check()
    made.engine.cancel(H2, 1)
    assert made.engine.idle
    assert all(pool.held == 0 for pool in made.engine.status().pools)


def test_who_has_no_whole_state_here_cannot_be_parked() -> None:
    made = rig()
    made.engine.submit(spec("a", 5, max_tokens=6), H1)
    with pytest.raises(SnapshotNotReady, match="waiting"):
        made.engine.park(H1, 1)
    assert made.engine.park(H2, 1) is None
    assert made.engine.park(H1, 2) is None


def test_who_is_parked_is_never_retracted() -> None:
    made = rig(backups=8, rules=RetractionRules(forced_every=1))
    made.engine.submit(spec("a", 5, max_tokens=30), H1)
    made.engine.submit(spec("b", 7, max_tokens=30), H2)
    while not made.engine.live_requests()[0].output:
        step(made)
    while True:
        try:
            request = made.engine.park(H1, 1)
            break
        except SnapshotNotReady:
            step(made)
    assert request is not None
    for _ in range(10):
        assert step(made) == [2]
    assert request.tables is not None
