"""Scores of prompt tokens: their log-probabilities, each given all tokens before it; plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from segue.ids import Handle

Top: TypeAlias = tuple[tuple[int, float], ...]
"""Alternatives of one token as (token id, logprob), best first."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of consecutive prompt tokens: that of the token at position `first + i` is `logprobs[i]`.

    `tops[i]` are the best tokens at that place, as many for each.
    """

    first: int
    logprobs: Sequence[float]
    tops: Sequence[Top]

    def __post_init__(self) -> None:
        assert len(self.tops) == len(self.logprobs), "alternatives for every score, if none"
        assert len({len(top) for top in self.tops}) <= 1, "as many alternatives for each score"

    @property
    def stop(self) -> int:
        """The position behind the last one."""
        return self.first + len(self.logprobs)


@dataclass(frozen=True, slots=True)
class PromptScores:
    """What is new of one request choice that is scored."""

    handle: Handle
    attempt: int
    scores: Scores
