"""What retraction did at one worker, as a plain value; counts nothing itself."""

from dataclasses import dataclass

from segue.state.pool import PoolCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractionFigures:
    """Counted since the engine's start, but for `waiting` and `host`, which are so now.

    Requests were taken off the device `by_memory` because the next step did not fit, and `by_test` because a test asked
    for it: `requests` different ones. `resumed` counts how often one continued from its backup, `recomputed` how often
    from its tokens: because host memory was used up, because it was still extending when it left, or because a digest
    differed after the copy back, which happened `mismatched` times. `restored` ones came with a state of their own, out
    of a snapshot. `waiting` are off the device and in line to come back. `saved_bytes` and `restored_bytes` were
    copied, which took `copy_s` from begin to end, and requests were off the device for `away_s`, summed up.

    Completed forwards: `resumed_extend_tokens` positions of requests that continued from a backup were extended before
    their next retraction, which must be none. `recomputed_tokens` positions had been computed before.
    """

    by_memory: int = 0
    by_test: int = 0
    requests: int = 0
    resumed: int = 0
    restored: int = 0
    recomputed: int = 0
    mismatched: int = 0
    waiting: int = 0
    saved_bytes: int = 0
    restored_bytes: int = 0
    copy_s: float = 0.0
    away_s: float = 0.0
    resumed_extend_tokens: int = 0
    recomputed_tokens: int = 0
    host: tuple[PoolCounts, ...] = ()

    @property
    def retractions(self) -> int:
        """By whatever cause."""
        return self.by_memory + self.by_test
