"""Chooses a worker among those that may take a request; pure policy, knows nothing of sessions."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from router.config import PlacementPolicy

# A session stays with its worker, and what that has cached, while the idlest has at most this many choices less.
AFFINITY_SLACK = 8


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that may be chosen, and how many choices it has."""

    address: str
    load: int


class Placement:
    """Applies one policy. `affinity` keeps requests that share something on one worker while that is not overloaded."""

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self._turn = 0

    def choose(self, candidates: Sequence[Candidate], affinity: str | None) -> Candidate:
        """One of the candidates, of which there must be at least one."""
        assert candidates, "there is nobody to choose from"
        load_min = min(candidate.load for candidate in candidates)
        if affinity is not None:
            home = max(candidates, key=lambda candidate: _score(affinity, candidate.address))
            if home.load <= load_min + AFFINITY_SLACK:
                return home
        if self._policy is PlacementPolicy.LEAST_LOADED:
            candidates = [candidate for candidate in candidates if candidate.load == load_min]
        self._turn += 1
        return candidates[self._turn % len(candidates)]


def _score(affinity: str, address: str) -> bytes:
    """Rendezvous hashing: a worker that comes or goes moves only its own share of the sessions."""
    return hashlib.blake2b(f"{affinity}\0{address}".encode(), digest_size=8).digest()
