"""A worker is taken out by its own faults only, and comes back by one probe."""

import pytest

from router.breaker import Breaker, BreakerState
from segue.errors import (
    Cancelled,
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    QueueFull,
    ServingError,
    SnapshotFailed,
    SnapshotFolderFull,
    WorkerUnavailable,
)

FAULT = ServingError("a bug")


def opened() -> Breaker:
    breaker = Breaker(3, 10.0)
    for _ in range(3):
        breaker.begin(0.0)
        breaker.fail(FAULT, 0.0)
    return breaker


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no"),
        ContextTooLong("long"),
        Cancelled("left"),
        QueueFull("full"),
        DeadlineExceeded("late"),
        SnapshotFolderFull("full"),
        SnapshotFailed("disk"),
    ],
)
def test_what_is_no_fault_of_the_worker_never_opens_it(error: ServingError) -> None:
    breaker = Breaker(1, 10.0)
    for _ in range(100):
        breaker.begin(0.0)
        breaker.fail(error, 0.0)
    assert breaker.state(0.0) is BreakerState.CLOSED


@pytest.mark.parametrize("error", [FAULT, WorkerUnavailable("gone")])
def test_faults_in_a_row_open_it(error: ServingError) -> None:
    breaker = Breaker(2, 10.0)
    breaker.fail(error, 0.0)
    assert breaker.allows(0.0)
    breaker.fail(error, 1.0)
    assert not breaker.allows(1.0)
    assert breaker.opens_at(1.0) == 11.0


def test_a_success_in_between_starts_the_count_again() -> None:
    breaker = Breaker(2, 10.0)
    for _ in range(10):
        breaker.fail(FAULT, 0.0)
        breaker.succeed()
    assert breaker.state(0.0) is BreakerState.CLOSED


def test_after_the_cooldown_one_probe_is_let_through_at_a_time() -> None:
    breaker = opened()
    assert not breaker.allows(9.9)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    breaker.begin(10.0)
    assert not breaker.allows(10.0)
    with pytest.raises(AssertionError):
        breaker.begin(10.0)
    breaker.withdraw()
    assert breaker.allows(10.0)


def test_a_probe_that_succeeds_closes_it_and_one_that_fails_opens_it_again() -> None:
    breaker = opened()
    breaker.begin(10.0)
    breaker.fail(FAULT, 10.0)
    assert breaker.opens_at(10.0) == 20.0
    breaker.begin(20.0)
    breaker.succeed()
    assert breaker.state(20.0) is BreakerState.CLOSED
    assert breaker.opens_at(20.0) is None
    breaker.fail(FAULT, 21.0)
    assert breaker.allows(21.0)


def test_a_probe_refused_for_the_clients_fault_leaves_it_half_open() -> None:
    breaker = opened()
    breaker.begin(10.0)
    breaker.fail(InvalidRequest("no"), 10.0)
    assert breaker.state(10.0) is BreakerState.HALF_OPEN
    assert breaker.allows(10.0)
