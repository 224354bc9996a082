"""Where the end of a prompt that is not cached is computed, here or by a prefill worker: by what either cost lately.

Pure policy. Costs are seconds that requests wait: the prompt itself, and whoever decodes here beside it.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from segue.batch.request import Request
from segue.batch.role import Role
from segue.batch.step import StepPlan
from segue.cache.figures import ChosenPrompts

RECENT = 16
"""About so many observations count; that many handoffs must have been seen, the first of which open connections."""
STALE_S = 60.0
"""Older costs say nothing."""


class Rule(StrEnum):
    """How the choice is made, within the bound that is set for what is computed here."""

    COST = "cost"
    """By measured costs, once there are any."""
    THRESHOLD = "threshold"
    """Whatever is within the bound is computed here."""


class Reason(StrEnum):
    """Why a prompt is computed where it is."""

    SCORED = "scored"
    """Here: only this worker tells the scores."""
    SHORT = "short"
    """Here: little is missing, and costs are not known or not asked for."""
    CHEAPER = "cheaper"
    """Little is missing, and it costs less where it is computed."""
    LONG = "long"
    """Elsewhere: more is missing than is ever computed here."""
    UNCACHED = "uncached"
    """Elsewhere: nothing of it is cached here."""
    EVICTED = "evicted"
    """Elsewhere after all: what was cached here is gone, and with it more is missing than is ever computed here."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a prompt is computed here, and why."""

    here: bool
    reason: Reason


class SuffixCosts:
    """What one worker has seen of its own steps and of handoffs to it, and what it has chosen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._decode_s = _Mean()
        self._extended = _Rate()
        self._sent = _Line()
        self._computed_share = _Rate()
        self._extended_at = self._sent_at = float("-inf")
        self._began_at = 0.0
        self._chosen: Counter[Choice] = Counter()

    # Observations

    def begin_step(self) -> None:
        """A step is being planned."""
        self._began_at = self._clock()

    def end_step(self, plan: StepPlan) -> None:
        """That step, which was not empty, has been computed."""
        self.stepped(self._clock() - self._began_at, plan.extended_count, beside=plan.rows[0].decode)

    def stepped(self, seconds: float, extended: int, *, beside: bool) -> None:
        """A step computed `extended` prompt tokens; `beside` means that others decoded in it."""
        if not extended:
            self._decode_s.add(seconds)
            return
        # A step that decodes as well takes as long as one that only decodes, and longer by what it extends.
        self._extended.add(max(0.0, seconds - (self._decode_s.value if beside else 0.0)), extended)
        self._extended_at = self._clock()

    def handed_over(self, seconds: float, known: int, reused: int) -> None:
        """The state after `known` tokens has come, so long after its sender was called; that had `reused` of them.

        Whatever is moved is in it: what does not depend on the length in each handoff alike, pages with their tokens.
        """
        if self._clock() - self._sent_at > STALE_S:
            self._sent, self._computed_share = _Line(), _Rate()
        self._sent.add(known - reused, seconds)
        self._computed_share.add(known - reused, known)
        self._sent_at = self._clock()

    # Estimates

    def extend_s(self, tokens: int, decoding: int) -> float | None:
        """What computing `tokens` here costs, with so many requests decoding beside them; None when it is not known."""
        if self._clock() - self._extended_at > STALE_S:
            return None
        return tokens * self._extended.value * (1 + decoding)

    def send_s(self, known: int) -> float | None:
        """What a handoff of so many tokens costs; None when it is not known."""
        if self._sent.count < RECENT or self._clock() - self._sent_at > STALE_S:
            return None
        return self._sent.at(known * self._computed_share.value)

    # The choice

    def choose(self, by: Rule, request: Request, cached: int, decoding: int) -> Choice:
        """Where a request is computed that can be resumed after `cached` tokens here, while so many others decode.

        Never more than its `extend_max` tokens here, but for one whose prompt is scored.
        """
        missing = request.known_len - cached
        if request.score_from is not None:
            return Choice(True, Reason.SCORED)
        if missing > request.extend_max:
            return Choice(False, Reason.LONG)
        if not cached:
            return Choice(False, Reason.UNCACHED)
        here, there = self.extend_s(missing, decoding), self.send_s(request.known_len)
        if by is Rule.THRESHOLD or here is None or there is None:
            return Choice(True, Reason.SHORT)
        return Choice(here <= there, Reason.CHEAPER)

    def count(self, choice: Choice) -> None:
        """A prompt was taken, and is computed by that choice."""
        self._chosen[choice] += 1

    def count_recalled(self, request: Request) -> None:
        """A prefill worker is called for a request that was to be computed here, or had been once before it left."""
        if not request.retractions:
            self.count(Choice(False, Reason.EVICTED))

    def chosen(self) -> tuple[ChosenPrompts, ...]:
        """All that were taken, by role and reason."""
        return tuple(
            ChosenPrompts((Role.DECODE if choice.here else Role.PREFILL).value, choice.reason.value, count)
            for choice, count in sorted(self._chosen.items(), key=lambda item: (not item[0].here, item[0].reason))
        )


class _Mean:
    """The mean of what was added lately."""

    def __init__(self) -> None:
        self.value = 0.0
        self._weight = 0.0

    def add(self, value: float) -> None:
        self._weight = _FADES * self._weight + 1
        self.value += (value - self.value) / self._weight


class _Rate:
    """Of two quantities that were added together lately, how much of the first comes with one of the second."""

    def __init__(self) -> None:
        self._part = self._whole = 0.0

    def add(self, part: float, whole: float) -> None:
        self._part = _FADES * self._part + part
        self._whole = _FADES * self._whole + whole

    @property
    def value(self) -> float:
        return self._part / self._whole if self._whole else 0.0


class _Line:
    """A fixed part and one for each token, neither below zero, by least squares over what was added lately."""

    def __init__(self) -> None:
        self.count = 0
        self._w = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, x: float, y: float) -> None:
        self.count += 1
        self._w = _FADES * self._w + 1
        self._x = _FADES * self._x + x
        self._y = _FADES * self._y + y
        self._xx = _FADES * self._xx + x * x
        self._xy = _FADES * self._xy + x * y

    def at(self, x: float) -> float:
        spread = self._w * self._xx - self._x * self._x
        if spread <= 1e-9 * self._w * self._xx:
            # All were of one length: nobody can tell what of their time was fixed.
            return self._in_proportion(x)
        slope = (self._w * self._xy - self._x * self._y) / spread
        if slope < 0:
            return self._y / self._w
        fixed = (self._y - slope * self._x) / self._w
        return self._in_proportion(x) if fixed < 0 else fixed + slope * x

    def _in_proportion(self, x: float) -> float:
        return x * self._xy / self._xx if self._xx else self._y / self._w


_FADES = 1 - 1 / RECENT
