"""Takes a worker out of rotation after server faults in a row and lets one probe try it later; pure, no clock."""

from enum import StrEnum

from segue.errors import Cancelled, DeadlineExceeded, QueueFull, ServingError, SnapshotError


class BreakerState(StrEnum):
    """Whether requests may be sent."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Counts faults of one worker. Times are seconds of any one monotonic clock, passed in."""

    def __init__(self, faults_max: int, cooldown_s: float) -> None:
        self._faults_max = faults_max
        self._cooldown_s = cooldown_s
        self._faults = 0
        self._open_until: float | None = None
        self._probing = False

    def state(self, now: float) -> BreakerState:
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._open_until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """True when a request may be sent; half open allows one until its outcome is known."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._probing)

    def begin(self, now: float) -> None:
        """A request is sent. Asserts that it was allowed."""
        assert self.allows(now), "a request was sent past an open breaker"
        self._probing = self.state(now) is BreakerState.HALF_OPEN

    def succeed(self) -> None:
        """The worker did what was asked."""
        self._faults = 0
        self._open_until = None
        self._probing = False

    def fail(self, error: ServingError, now: float) -> None:
        """A request failed. What a client caused, or load, a deadline or a snapshot, is no fault of the worker."""
        self._probing = False
        if error.client_fault or isinstance(error, Cancelled | QueueFull | DeadlineExceeded | SnapshotError):
            return
        self._faults += 1
        if self._faults >= self._faults_max or self._open_until is not None:
            self._open_until = now + self._cooldown_s

    def withdraw(self) -> None:
        """The outcome will never be known (the client left)."""
        self._probing = False

    def opens_at(self, now: float) -> float | None:
        """When an open breaker will allow its probe; None when it is not open."""
        return self._open_until if self.state(now) is BreakerState.OPEN else None
