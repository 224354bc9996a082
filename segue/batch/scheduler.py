"""Decides what the next step computes: continuous batching, chunked prefill under a token budget; pure policy.

Decoding requests come first, one token each; what is left of the budget goes to extending requests in admission order;
then waiting requests are admitted, highest priority and earliest first, stopping at the first that does not fit. A
request whose state comes from another worker stands in the same order for a promise of room. Where a step does not
fit, requests are taken off the device; until all of them are back nobody new is let in.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

from segue.batch.admission import Admission, headroom
from segue.batch.backups import Backup
from segue.batch.holdings import Holdings
from segue.batch.incoming import Incoming
from segue.batch.lifecycle import Phase
from segue.batch.limits import SchedulerLimits
from segue.batch.request import Request
from segue.batch.retraction import Cause, Retraction, victim
from segue.batch.retraction_figures import RetractionFigures
from segue.batch.step import StepPlan, StepRow
from segue.batch.turns import Turns
from segue.errors import PoolExhausted, QueueFull
from segue.handoff import UnitRow
from segue.ids import Handle
from segue.state.spec import ComponentName


class Scheduler:
    """Waiting and running requests, and the plan of the next step.

    `turns` is that of a prefill worker, which computes only what its receivers have room for. Without `retraction`
    whoever is let in stays until its end.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        admission: Admission,
        holdings: Holdings,
        turns: Turns | None = None,
        retraction: Retraction | None = None,
    ) -> None:
        self._limits = limits
        self._admission = admission
        self._holdings = holdings
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._steps = self._decode_steps = self._plans = 0
        # Whom there was no room for, and how many requests had left by then: looked at again when one more has.
        self._blocked: tuple[Handle, int] | None = None
        self._departures = 0
        self.retraction = retraction
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

    @property
    def decoding_count(self) -> int:
        """Running requests that get a token a step."""
        return sum(one.phase is Phase.DECODING for one in self._running)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises ContextTooLong or QueueFull, and then keeps nothing of it."""
        self._validate(request)
        if request.phase is Phase.AWAITING:
            self.incoming.expect(request)
        else:
            insort(self._waiting, request, key=_order)

    def restore(self, request: Request, backup: Backup) -> None:
        """A request comes with its state in host memory, and stands in line with those that were taken off the device.

        Raises ContextTooLong or QueueFull, and then keeps nothing of it.
        """
        assert self.retraction is not None, "a worker without retraction brings nobody back"
        self._validate(request)
        # What waits in host memory is no more than the device itself might hold.
        if (waiting := self.retraction.waiting_count) >= self._limits.max_running:
            raise QueueFull(f"{waiting} requests wait to come back to the device already; retry later")
        self.retraction.enter(request, backup)

    def drop(self, request: Request) -> None:
        """Takes a request out, wherever it is, and releases all that it owns. No step with it may be in flight."""
        self._departures += 1
        if request in self._running:
            if request.phase is Phase.FINISHED:
                self._holdings.publish_ended(request, self._spare)
            self._running.remove(request)
            self._holdings.release(request)
        elif request in self._waiting:
            self._waiting.remove(request)
            self._left_queue(request)
        elif self.retraction is None or not self.retraction.drop(request):
            self.incoming.drop(request)
            self._holdings.let_go(request)

    def receive(self, request: Request, reused: int) -> None:
        """A promised request has its state, and runs from now on. What came is published at once.

        Its sender had `reused` tokens of it in its cache.
        """
        assert self.incoming.is_promised(request), f"request {request.request_id} was promised nothing"
        assert request.tables is not None
        self.incoming.drop(request)
        self._running.append(request)
        if request.retractions and self.retraction is not None:
            self.retraction.recomputed(request)
            self.retraction.forwarded(request, reused, request.computed - reused, decode=True)
        self._holdings.publish_received(request, self._spare)

    def receive_checkpoint(self, request: Request, rows: Sequence[UnitRow], depth: int) -> None:
        """The prompt checkpoint has followed the state of a request that may have ended meanwhile."""
        assert request in self._running
        self._holdings.receive_checkpoint(request, rows, depth, self._spare)

    def fall_back(self, request: Request) -> bool:
        """Nobody else computes the state of a request that was taken off the device: it is computed here.

        False for one that is not on its way back.
        """
        if request.phase is not Phase.AWAITING or not request.retractions or self.retraction is None:
            return False
        self.incoming.drop(request)
        self._holdings.let_go(request)
        self.retraction.requeue(request)
        return True

    def take_promised(self) -> list[Request]:
        """Requests that were promised room since the last call. What was kept for them is to be reserved at once."""
        promised = self.incoming.take_promised()
        for request in promised:
            self._holdings.let_go(request)
        return promised

    def take_due(self) -> list[Request]:
        """Queued prompts whose receivers are to be asked now; nothing to ask where whoever is queued may start."""
        if self.turns is None:
            return []
        committed = [*self._running, *(request for request in self._waiting if self.turns.may_start(request))]
        withheld = self._holdings.withheld()
        return self.turns.take_due(self._waiting, lambda request: self._admission.fits(request, committed, withheld))

    def settle(self, row: StepRow) -> None:
        """A row was committed, its request being at `row.depth` now and going on."""
        request = row.request
        if request.retractions and self.retraction is not None:
            self.retraction.forwarded(request, row.start, row.count, decode=row.decode)
        if row.decode and row.checkpoint is None and self._holdings.settled_quietly(request):
            return
        self._holdings.settle(request, row.checkpoint, decode=row.decode, spare=self._spare)

    def retraction_figures(self) -> RetractionFigures:
        """What retraction did so far; all zero without it."""
        return RetractionFigures() if self.retraction is None else self.retraction.figures()

    def check(self) -> None:
        """Asserts that every pool adds up and that exactly those who own units hold them."""
        self._holdings.check(self._committed())
        if self.retraction is not None:
            self.retraction.check()

    @property
    def _owners(self) -> list[Request]:
        """Requests that own units of the device, those included that are on their way off it or back."""
        return [*self._running, *(self.retraction.on_device if self.retraction is not None else ())]

    def _committed(self) -> list[Request]:
        return [*self._owners, *self.incoming.committed]

    def _spare(self, request: Request) -> int:
        """Full pages of others that a request may pin: nobody may come to need them, nor itself in the end."""
        spare = self._admission.spare(self._committed(), self._holdings.withheld()).get(ComponentName.FULL, 0)
        return spare if self.retraction is None else min(spare, self._admission.foreign_room(request))

    def plan(self) -> StepPlan | None:
        """The next step, with pages and slots for all its rows allocated; None when there is nothing to compute."""
        plan = self._plan()
        # Nothing can run beside the copies: they are waited for.
        while plan is None and self.retraction is not None and self.retraction.finish_copies():
            plan = self._plan()
        return plan

    def _plan(self) -> StepPlan | None:
        self._plans += 1
        if self.retraction is not None:
            self._come_back(self.retraction)
        self._admit()
        if self.retraction is not None:
            self._retract_for_test(self.retraction)
        stalled = self._grow_decoding()
        extending = self._extend(self._limits.step_tokens - self.decoding_count)
        # Rows are many, and to look a phase up costs as much as to compare ten.
        decoding = Phase.DECODING
        rows = [StepRow(one, one.computed, 1, True, True) for one in self._running if one.phase is decoding]
        if stalled:
            rows = [row for row in rows if row.request not in stalled]
        # A prompt that matters less may have left for one that stands behind it.
        rows += [row for row in extending if row.request.phase is Phase.EXTENDING]
        if not rows:
            # Whatever ends the wait may have freed units although nobody has left.
            self._blocked = None
            return None
        self._steps += 1
        if self.retraction is not None:
            self.retraction.ratio.decay()
        # A row that decodes leaves a checkpoint only where a page ends.
        page = self._limits.page_tokens
        within = [row.decode and (row.start + 1) % page for row in rows]
        return StepPlan(
            self._steps,
            tuple(row if quiet else self._with_checkpoint(row) for row, quiet in zip(rows, within, strict=True)),
        )

    def _grow_decoding(self) -> list[Request]:
        """Gives a page to every decoding request that begins one. Returns those that must wait for it."""
        page, decoding = self._limits.page_tokens, Phase.DECODING
        beginning = [one for one in self._running if one.phase is decoding and one.computed % page == 0]
        return [request for request in beginning if not self._grow(request, request.computed + 1)]

    def _extend(self, budget: int) -> list[StepRow]:
        """A chunk of every extending request, in admission order, as far as budget and memory go."""
        rows: list[StepRow] = []
        scorable = self._limits.scored_tokens
        for request in [one for one in self._running if one.phase is Phase.EXTENDING]:
            count = self._limits.chunk(request, budget, scorable)
            if count <= 0 or not self._grow(request, request.computed + count):
                continue
            samples = request.computed + count == request.known_len and not request.ends_with_prompt
            rows.append(StepRow(request, request.computed, count, decode=False, samples=samples))
            budget -= count
            scorable -= len(rows[-1].scored)
        return rows

    def _grow(self, request: Request, depth: int) -> bool:
        """Gives a request the pages up to `depth`; others leave the device for them where it must be.

        False when it has to wait for them, or has left itself. Raises PoolExhausted where nobody may be taken off.
        """
        while request.phase in (Phase.EXTENDING, Phase.DECODING):
            try:
                self._holdings.grow(request, depth)
            except PoolExhausted:
                if self.retraction is None:
                    raise
                # Units that are still being read will be free soon.
                if self.retraction.leaving:
                    return False
                leaver = victim(self._running)
                if leaver is None:
                    if not self._take_kept_room():
                        return False
                    continue
                # A prompt that matters least waits where it is.
                if leaver is request and request.phase is Phase.EXTENDING:
                    return False
                self._retract(self.retraction, leaver, Cause.MEMORY)
            else:
                return True
        return False

    def _take_kept_room(self) -> bool:
        """The last one that runs goes on: it does not wait for a sender, which may wait for whom it keeps out.

        False when no room is kept.
        """
        kept = next((one for one in self.incoming.recalled if one.tables is not None), None)
        if kept is not None:
            self._holdings.let_go(kept)
        return kept is not None

    def _retract(self, retraction: Retraction, request: Request, cause: Cause) -> None:
        self._departures += 1
        self._running.remove(request)
        if request.phase is Phase.EXTENDING:
            retraction.put_back(request, cause)
            insort(self._waiting, request, key=_order)
        else:
            retraction.retract(request, cause)
        if cause is Cause.MEMORY:
            retraction.ratio.learn_from(self._running)

    def _retract_for_test(self, retraction: Retraction) -> None:
        every = retraction.rules.forced_every
        decoding = [one for one in self._running if one.phase is Phase.DECODING]
        if not every or len(decoding) < 2:
            return
        self._decode_steps += 1
        if self._decode_steps % every == 0 and (leaver := victim(decoding)) is not None:
            self._retract(retraction, leaver, Cause.TEST)

    def _come_back(self, retraction: Retraction) -> None:
        """Brings back whom there is room for, in the order of the line."""
        self._running += retraction.settle()
        while (head := retraction.head) is not None and self._has_room_again(head.request, retraction):
            if head.backup is not None:
                retraction.bring_back()
            else:
                self._begin(retraction.recompute())
            self._running += retraction.settle()

    def _begin(self, request: Request) -> None:
        """There is room for a request that is to be computed: another worker is asked for its state, or it runs."""
        if self._goes_elsewhere(request):
            request.move(Phase.AWAITING)
            self.incoming.recall(request)
            if request in self.incoming.recalled:
                self._holdings.set_aside(request, request.known_len + headroom(request))
            return
        self._holdings.admit(request)
        request.move(Phase.EXTENDING)
        self._running.append(request)
        if request.retractions and self.retraction is not None:
            self.retraction.recomputed(request)

    def _goes_elsewhere(self, request: Request) -> bool:
        """Whether more is missing here than is computed here where another worker can be asked for it.

        What a request was to go on from may have been evicted since it came.
        """
        return request.recallable and request.known_len - self._holdings.cached_depth(request) > request.extend_max

    def _has_room_again(self, request: Request, retraction: Retraction) -> bool:
        committed = self._committed()
        return len(committed) < self._limits.max_running and self._admission.resumes(
            request, committed, self._holdings.withheld(), retraction.rules.headroom_steps
        )

    def _with_checkpoint(self, row: StepRow) -> StepRow:
        slot = self._holdings.take_checkpoint(row.request, row.depth, decode=row.decode)
        return row if slot is None else replace(row, checkpoint=slot)

    def _admit(self) -> None:
        """Lets in whoever is next, until that one does not fit, or while somebody waits to come back."""
        while self.retraction is None or not self.retraction.waiting:
            committed = self._committed()
            candidates = [one for one in (self._first_waiting(), self.incoming.head) if one is not None]
            request = min(candidates, key=_order, default=None)
            if request is None or len(committed) >= self._limits.max_running or self._still_blocked(request):
                return
            if not self._admission.fits(request, committed, self._holdings.withheld()):
                self._blocked = request.handle, self._departures
                return
            if request.phase is Phase.AWAITING:
                self.incoming.promise()
                continue
            self._waiting.remove(request)
            self._left_queue(request)
            self._begin(request)

    def _still_blocked(self, request: Request) -> bool:
        """Whether there is no room yet for whom there was none a few steps ago: to know that is a look at everybody."""
        return bool(self._running) and self._blocked == (request.handle, self._departures) and self._plans % 16 != 0

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


def _order(request: Request) -> tuple[int, float, int]:
    return -request.priority, request.arrival, request.handle
