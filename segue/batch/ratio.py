"""How much of what requests may still put out is assumed to come: admission's estimate, which retractions correct."""

from collections.abc import Sequence
from dataclasses import dataclass

from segue.batch.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RetractionRules:
    """Numbers of STATE.md section 2.

    A resumed request and everybody running must have room for `headroom_steps` more decode steps. Admission assumes
    that `ratio_start` of the output budgets is used, and less and less over `ratio_steps` steps down to `ratio_floor`,
    until a retraction shows what those that run have used. Tests take a request off the device on every
    `forced_every`-th step that decodes more than one (0: never).
    """

    headroom_steps: int = 20
    ratio_start: float = 0.7
    ratio_floor: float = 0.1
    ratio_steps: int = 600
    forced_every: int = 0


class NewTokenRatio:
    """The share of its remaining output budget that a request is expected to use."""

    def __init__(self, rules: RetractionRules) -> None:
        self._rules = rules
        self._value = rules.ratio_start

    @property
    def value(self) -> float:
        return self._value

    def expected(self, request: Request) -> int:
        """Positions that will be computed beyond the known tokens: `value` of what may be, the headroom at least."""
        left = max(0, request.max_len - 1 - request.known_len)
        return min(left, max(self._rules.headroom_steps, round(self._value * left)))

    def decay(self) -> None:
        """A step was planned."""
        step = (self._rules.ratio_start - self._rules.ratio_floor) / self._rules.ratio_steps
        self._value = max(self._rules.ratio_floor, self._value - step)

    def learn_from(self, running: Sequence[Request]) -> None:
        """A retraction left these running: what they have used so far, and will soon, of what they may."""
        output = sum(len(request.output) for request in running)
        budget = sum(request.sampling.max_tokens for request in running)
        self._value = min(1.0, (output + self._rules.headroom_steps * len(running)) / (budget + 1))
