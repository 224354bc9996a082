"""When a process that ended is started again, and when that is given up; pure policy, starts nothing."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A life shorter than `quick_death_s` is a quick death; waits double from one quick death to the next."""

    quick_death_s: float
    quick_deaths_max: int
    backoff_s: float
    backoff_s_max: float


class Restarts:
    """The deaths of one process."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._quick = 0

    def died(self, lived_s: float) -> float | None:
        """How long to wait before the next start; None when there have been too many quick deaths in a row."""
        policy = self._policy
        self._quick = self._quick + 1 if lived_s < policy.quick_death_s else 0
        if self._quick >= policy.quick_deaths_max:
            return None
        if self._quick == 0:
            return policy.backoff_s
        return float(min(policy.backoff_s * 2 ** (self._quick - 1), policy.backoff_s_max))
