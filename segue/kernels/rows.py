"""Which tokens of a step belong to which row, and where in its sequence each stands."""

from dataclasses import dataclass

import numpy as np

from segue.batch.step import IntArray
from segue.runner.context import StepContext


@dataclass(frozen=True, slots=True)
class TokenPlaces:
    """Row and absolute position of each token of a step."""

    rows: IntArray  # [T]
    positions: IntArray  # [T]

    @staticmethod
    def of(step: StepContext) -> "TokenPlaces":
        depths, rows = np.array(step.depths, np.int64), np.arange(step.row_count)
        if step.decode_rows == step.row_count:
            return TokenPlaces(rows, depths)
        starts = np.array(step.row_starts, np.int64)
        rows = rows.repeat(np.diff(starts))
        return TokenPlaces(rows, np.arange(starts[-1]) + (depths - starts[:-1])[rows])

    def at(self, tokens: "slice | IntArray") -> "TokenPlaces":
        """The places of some of the tokens."""
        return TokenPlaces(self.rows[tokens], self.positions[tokens])


def spans(step: StepContext) -> list[slice]:
    """The range of tokens of every row."""
    return [slice(start, stop) for start, stop in zip(step.row_starts, step.row_starts[1:], strict=False)]


def extended_rows(step: StepContext) -> list[tuple[int, slice]]:
    """The rows behind the decode rows, each with the range of its tokens."""
    return list(enumerate(spans(step)))[step.decode_rows :]
