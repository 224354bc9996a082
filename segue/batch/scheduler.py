"""Decides what the next step computes: continuous batching, chunked prefill under a token budget; pure policy.

Decoding requests come first, one token each; what is left of the budget goes to extending requests in admission order;
then waiting requests are admitted, highest priority and earliest first, stopping at the first that does not fit. A
request whose state comes from another worker stands in the same order for a promise of room.
"""

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, replace

from segue.batch.admission import Admission
from segue.batch.holdings import Holdings
from segue.batch.incoming import Incoming
from segue.batch.lifecycle import Phase
from segue.batch.request import Request
from segue.batch.step import StepPlan, StepRow
from segue.batch.turns import Turns
from segue.errors import QueueFull
from segue.handoff import UnitRow
from segue.state.spec import ComponentName

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


class Scheduler:
    """Waiting and running requests, and the plan of the next step.

    `turns` is that of a prefill worker, which computes only what its receivers have room for.
    """

    def __init__(
        self, limits: SchedulerLimits, admission: Admission, holdings: Holdings, turns: Turns | None = None
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._holdings = holdings
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._steps = 0
        self.incoming = Incoming()
        self.turns = turns

    @property
    def waiting(self) -> tuple[Request, ...]:
        """Queued requests in the order in which they will be admitted."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Request, ...]:
        """Requests that own state, in admission order."""
        return tuple(self._running)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises ContextTooLong or QueueFull, and then keeps nothing of it."""
        self._validate(request)
        if request.phase is Phase.AWAITING:
            self.incoming.expect(request)
        else:
            insort(self._waiting, request, key=_order)

    def drop(self, request: Request) -> None:
        """Takes a request out, wherever it is, and releases all that it owns. No step with it may be in flight."""
        if request in self._running:
            if request.phase is Phase.FINISHED:
                self._holdings.publish_ended(request, self._spare)
            self._running.remove(request)
            self._holdings.release(request)
        elif request in self._waiting:
            self._waiting.remove(request)
            self._left_queue(request)
        else:
            self.incoming.drop(request)
            self._holdings.let_go(request)

    def receive(self, request: Request) -> None:
        """A promised request has its state, and runs from now on. What came is published at once."""
        assert self.incoming.is_promised(request), f"request {request.request_id} was promised nothing"
        assert request.tables is not None
        self.incoming.drop(request)
        self._running.append(request)
        self._holdings.publish_received(request, self._spare)

    def receive_checkpoint(self, request: Request, rows: Sequence[UnitRow], depth: int) -> None:
        """The prompt checkpoint has followed the state of a request that may have ended meanwhile."""
        assert request in self._running
        self._holdings.receive_checkpoint(request, rows, depth, self._spare)

    def take_due(self) -> list[Request]:
        """Queued prompts whose receivers are to be asked now; nothing to ask where whoever is queued may start."""
        if self.turns is None:
            return []
        committed = [*self._running, *(request for request in self._waiting if self.turns.may_start(request))]
        withheld = self._holdings.withheld()
        return self.turns.take_due(self._waiting, lambda request: self._admission.fits(request, committed, withheld))

    def settle(self, row: StepRow) -> None:
        """A row was committed, its request being at `row.depth` now and going on."""
        self._holdings.settle(row.request, row.checkpoint, decode=row.decode, spare=self._spare)

    def _spare(self) -> int:
        """Full pages that no running or promised request may come to need."""
        committed = (*self._running, *self.incoming.promised)
        return self._admission.spare(committed, self._holdings.withheld()).get(ComponentName.FULL, 0)

    def plan(self) -> StepPlan | None:
        """The next step, with pages and slots for all its rows allocated; None when there is nothing to compute."""
        self._admit()
        budget, scorable = self._limits.step_tokens, self._limits.scored_tokens
        # Rows are many, and to look a phase up costs as much as to compare ten.
        decoding, extending = Phase.DECODING, Phase.EXTENDING
        rows = [StepRow(one, one.computed, 1, True, True) for one in self._running if one.phase is decoding]
        budget -= len(rows)
        for request in self._running:
            if request.phase is extending and (count := self._chunk(request, budget, scorable)) > 0:
                samples = request.computed + count == request.known_len and not request.ends_with_prompt
                rows.append(StepRow(request, request.computed, count, decode=False, samples=samples))
                budget -= count
                scorable -= len(rows[-1].scored)
        if not rows:
            return None
        # A row that decodes needs a page only where one begins, and leaves a checkpoint only where one ends.
        page = self._limits.page_tokens
        for row in rows:
            if not row.decode or row.start % page == 0:
                self._holdings.grow(row.request, row.depth)
        self._steps += 1
        within = [row.decode and (row.start + 1) % page for row in rows]
        return StepPlan(
            self._steps,
            tuple(row if quiet else self._with_checkpoint(row) for row, quiet in zip(rows, within, strict=True)),
        )

    def _with_checkpoint(self, row: StepRow) -> StepRow:
        slot = self._holdings.take_checkpoint(row.request, row.depth, decode=row.decode)
        return row if slot is None else replace(row, checkpoint=slot)

    def _admit(self) -> None:
        """Lets in whoever is next, until that one does not fit."""
        while len(self._running) + len(self.incoming.promised) < self._limits.max_running:
            candidates = [one for one in (self._first_waiting(), self.incoming.head) if one is not None]
            request = min(candidates, key=_order, default=None)
            committed = (*self._running, *self.incoming.promised)
            if request is None or not self._admission.fits(request, committed, self._holdings.withheld()):
                return
            if request.phase is Phase.AWAITING:
                self.incoming.promise()
                continue
            self._holdings.admit(request)
            self._waiting.remove(request)
            self._left_queue(request)
            request.move(Phase.EXTENDING)
            self._running.append(request)

    def _first_waiting(self) -> Request | None:
        """Whose turn it is. Who waits for its receiver, or for a prefix that is being computed, blocks nobody."""
        ready = (request for request in self._waiting if self.turns is None or self.turns.may_start(request))
        return next((request for request in ready if not self._holdings.awaits(request, self._running)), None)

    def _left_queue(self, request: Request) -> None:
        if self.turns is not None:
            self.turns.leave(request.handle)

    def _validate(self, request: Request) -> None:
        self._admission.validate(request)
        waiting = len(self._waiting) + self.incoming.waiting_count
        if waiting >= self._limits.max_waiting:
            raise QueueFull(f"{waiting} requests wait already, the queue holds {self._limits.max_waiting}; retry later")

    def _chunk(self, request: Request, budget: int, scorable: int) -> int:
        """Tokens of the request's next chunk, of which `scorable` may be scored.

        To the end or the next checkpoint, or to a grid point if one is within reach, or as far as it goes.
        """
        end = min((stop for stop in request.stops if stop > request.computed), default=request.known_len)
        missing = end - request.computed
        count = min(missing, self._limits.chunk_tokens, budget)
        scored = request.scored(request.computed, request.computed + count)
        if len(scored) > scorable:
            count = scored.start + scorable - request.computed
        if count <= 0 or count == missing:
            return max(0, count)
        on_grid = (request.computed + count) // self._limits.grid * self._limits.grid - request.computed
        return on_grid if on_grid > 0 else count


def _order(request: Request) -> tuple[int, float, int]:
    return -request.priority, request.arrival, request.handle
