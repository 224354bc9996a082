"""What one step computes and what came of it: the plan, and the record that joins launch and commit.

A step is launched from a plan and committed from its record, never from live requests: between the two calls a request
may be cancelled or finished, and the next step may already be planned. Plain values; the sampled tokens are numpy
arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

import numpy as np
import numpy.typing as npt

from segue.batch.request import Request
from segue.batch.scores import Scores
from segue.ids import SINK, Slot
from segue.tokens import EmittedToken

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]


# Not frozen: one is made for every row of every step, and making a frozen one takes twice as long.
@dataclass(slots=True)
class StepRow:
    """One request's part of a step: computes positions [start, start + count).

    `decode` is true when the row continues at its pending token (count 1). `samples` is true when the row's last
    position is the last known token, so that a new token follows. Into `checkpoint` goes a copy of the recurrent state
    that the row leaves.
    """

    request: Request
    start: int
    count: int
    decode: bool
    samples: bool
    checkpoint: Slot | None = None

    @property
    def depth(self) -> int:
        """Computed length once this step is committed."""
        return self.start + self.count

    @property
    def scored(self) -> range:
        """The row's positions whose logits score a prompt token."""
        return self.request.scored(self.start, self.depth)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Rows of one step; decode rows come first, so that a runner may treat them as one batch."""

    number: int
    rows: tuple[StepRow, ...]

    def __post_init__(self) -> None:
        assert self.rows, "an empty step is not launched"
        kinds = [row.decode for row in self.rows]
        assert kinds == sorted(kinds, reverse=True), "decode rows come first"

    @property
    def scored_rows(self) -> tuple[StepRow, ...]:
        """Rows that score prompt tokens."""
        return tuple(row for row in self.rows if row.scored)

    @property
    def token_count(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def extended_count(self) -> int:
        """Tokens of rows that do not decode."""
        return sum(row.count for row in takewhile(lambda row: not row.decode, reversed(self.rows)))


@dataclass(frozen=True, slots=True)
class TopLogprobs:
    """Alternatives of the sampled rows that asked for them, best first: ids and logprobs [sampled rows, k].

    K may be 0.
    """

    token_ids: IntArray
    logprobs: FloatArray


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Result of a forward: one entry per sampling row, in row order.

    `logprobs` are of the chosen tokens (0 if unasked). `scores` has one entry per row that scores, in row order.
    """

    token_ids: IntArray
    logprobs: FloatArray
    top: TopLogprobs | None
    scores: tuple[Scores, ...] = ()

    def tokens(self, wanted: Sequence[int | None]) -> list[EmittedToken]:
        """The tokens of all sampling rows, with so many alternatives as each `wanted`; None: not even its logprob."""
        found = zip(self.token_ids.tolist(), self.logprobs.tolist(), wanted, strict=True)
        return [
            EmittedToken(token, None) if count is None else EmittedToken(token, logprob, self._top(row, count))
            for row, (token, logprob, count) in enumerate(found)
        ]

    def _top(self, row: int, count: int) -> tuple[tuple[int, float], ...]:
        if not count or self.top is None:
            return ()
        ids, values = self.top.token_ids[row, :count].tolist(), self.top.logprobs[row, :count].tolist()
        return tuple(zip(ids, values, strict=True))


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A launched step: rows, the slot and depth of each at launch, and its output. Everything commit needs."""

    plan: StepPlan
    slots: IntArray
    depths: IntArray
    output: StepOutput

    @staticmethod
    def of(plan: StepPlan, output: StepOutput) -> "StepRecord":
        """The record of a plan that was launched just now."""
        slots = [row.request.tables.slot or SINK if row.request.tables else SINK for row in plan.rows]
        depths = [row.depth for row in plan.rows]
        return StepRecord(plan, np.asarray(slots, dtype=np.int64), np.asarray(depths, dtype=np.int64), output)


class StepRunner(Protocol):
    """Computes a planned step (the model runner in a worker, a script in tests)."""

    def launch(self, plan: StepPlan) -> StepOutput:
        """One output per sampling row of the plan, in row order.

        Raises SamplingFailed, with the output of all other rows, when rows have no token to choose.
        """
