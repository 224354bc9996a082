"""How often each token occurs in one request, kept up with its output; what penalties are computed from."""

import numpy as np

from segue.batch.request import Request
from segue.batch.step import IntArray


class TokenCounts:
    """The distinct tokens of one request's prompt and output, and how often each was output.

    Grows by the tokens that are new since the last call, so a step costs the same however long the output is.
    """

    def __init__(self, request: Request) -> None:
        self._prompt = np.unique(np.asarray(request.prompt, dtype=np.int64))
        self._row = {int(token): row for row, token in enumerate(self._prompt)}
        self._ids = self._prompt.copy()
        self._counts = np.zeros(len(self._prompt), dtype=np.int64)
        self._counted = 0

    @property
    def token_ids(self) -> IntArray:
        """Every distinct token so far, in no particular order."""
        return self._ids[: len(self._row)]

    @property
    def output_counts(self) -> IntArray:
        """How often each of `token_ids` was output; 0 for a token that only the prompt has."""
        return self._counts[: len(self._row)]

    def catch_up(self, request: Request) -> None:
        """Counts the output tokens that are new since the last call."""
        assert len(request.output) >= self._counted, f"the output of {request.request_id} became shorter"
        for position in range(self._counted, len(request.output)):
            self._add(request.output[position].token_id)
        self._counted = len(request.output)

    def _add(self, token_id: int) -> None:
        row = self._row.get(token_id)
        if row is None:
            row = len(self._row)
            self._row[token_id] = row
            if row == len(self._ids):
                room = np.zeros(max(64, row), dtype=np.int64)
                self._ids = np.concatenate([self._ids, room])
                self._counts = np.concatenate([self._counts, room])
            self._ids[row] = token_id
        self._counts[row] += 1
