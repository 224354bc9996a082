"""Bounds of what one worker runs at a time, and of one step; knows no pools."""

import math
from dataclasses import dataclass

from segue.batch.request import Request

KERNEL_CHUNK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Bounds of one worker: running and waiting requests, tokens of a step and of one request's chunk, page size.

    `scored_tokens` bounds the positions of a step from which prompt tokens are scored: each has logits of its own.
    """

    max_running: int
    max_waiting: int
    step_tokens: int
    chunk_tokens: int
    page_tokens: int
    scored_tokens: int = 512

    @property
    def grid(self) -> int:
        """The checkpoint grid G: chunks end on it where the budget allows."""
        return math.lcm(self.page_tokens, KERNEL_CHUNK)

    def chunk(self, request: Request, budget: int, scorable: int) -> int:
        """Tokens of the request's next chunk, of which `scorable` may be scored.

        To the end or the next checkpoint, or to a grid point if one is within reach, or as far as it goes.
        """
        end = min((stop for stop in request.stops if stop > request.computed), default=request.known_len)
        missing = end - request.computed
        count = min(missing, self.chunk_tokens, budget)
        scored = request.scored(request.computed, request.computed + count)
        if len(scored) > scorable:
            count = scored.start + scorable - request.computed
        if count <= 0 or count == missing:
            return max(0, count)
        on_grid = (request.computed + count) // self.grid * self.grid - request.computed
        return on_grid if on_grid > 0 else count
