"""The engine of one worker: requests in, steps launched and committed, news out. Knows no tensors, no async, no gRPC.

A step is two calls, `launch` and `commit`, joined by a StepRecord: between them requests may be cancelled or finished,
and what the step still touches is released only when it has been committed. State that comes from another engine enters
by `expect`, `ask` and `receive`; state that goes to one is `pin`ned while it is read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from segue.batch.backups import Backup
from segue.batch.failure import SamplingFailed
from segue.batch.holdings import Holdings
from segue.batch.lifecycle import Phase
from segue.batch.news import Ended, EngineNews
from segue.batch.request import FinishReason, Request
from segue.batch.role import Role
from segue.batch.roster import Roster
from segue.batch.rules import end_reason, require_output, require_servable
from segue.batch.scheduler import Scheduler
from segue.batch.scores import PromptScores
from segue.batch.slot_door import SlotDoor
from segue.batch.step import StepRecord, StepRunner
from segue.batch.submission import GenerateSpec
from segue.batch.suffix_costs import Rule, SuffixCosts
from segue.engine_facts import EngineFacts, EngineStatus
from segue.errors import DeadlineExceeded, ServingError
from segue.handoff import UnitRow
from segue.ids import SINK, Handle, Slot, WorkerId
from segue.tokens import EmittedToken


class Engine:
    """Owns the scheduler and the live requests. Every method is called by the one engine thread."""

    def __init__(
        self,
        facts: EngineFacts,
        scheduler: Scheduler,
        holdings: Holdings,
        slots: SlotDoor,
        runner: StepRunner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.facts = facts
        self._scheduler = scheduler
        self.holdings = holdings
        self._slots = slots
        self._runner = runner
        self._clock = clock
        self._stop_ids = frozenset(facts.eos_token_ids)
        self._roster = Roster()
        self._in_flight: StepRecord | None = None
        self._steps = self._generated = self._prefilled = 0
        self.costs = SuffixCosts(clock)

    # Requests

    def submit(self, spec: GenerateSpec, handle: Handle) -> None:
        """Queues a request, or, if it was moved here, awaits its state.

        Raises InvalidRequest, ContextTooLong or QueueFull, and then keeps nothing of it.
        """
        self._enter(self._request(spec, handle))

    def expect(self, spec: GenerateSpec, handle: Handle, extend_max: int = 0, by: Rule = Rule.THRESHOLD) -> bool:
        """Takes a request whose prompt another worker is to compute, unless the rule has no more than `extend_max`
        tokens of it computed here. Returns whether the other worker is needed. Raises as `submit` does.
        """
        request = self._request(spec, handle)
        request.recallable, request.extend_max = spec.score_from is None, extend_max
        cached = self.holdings.cached_depth(request) if extend_max else 0
        choice = self.costs.choose(by, request, cached, self._scheduler.decoding_count)
        if not choice.here:
            request.phase = Phase.AWAITING
        self._enter(request)
        self.costs.count(choice)
        return not choice.here

    def restore(
        self, spec: GenerateSpec, handle: Handle, backup: Backup, output: Sequence[EmittedToken], cached_tokens: int
    ) -> EngineNews:
        """Takes a request that goes on from `backup`, its state before the last of `output`; raises as `submit` does.
        Output that the router has beyond that is computed again, output that it lacks is news.
        """
        request = self._request(spec, handle)
        request.output[: len(output)], request.computed, request.cached_tokens = output, backup.depth, cached_tokens
        self._scheduler.restore(request, backup)
        self._roster.enter(request)
        news = EngineNews(self._steps)
        news.add_all(handle, request.attempt, len(spec.emitted), output[len(spec.emitted) :])
        return news

    def cancel(self, handle: Handle, attempt: int) -> None:
        """Ends a request whose client left. A no-op when it is unknown, of another attempt, or ended."""
        if (request := self._roster.find(handle, attempt)) is not None:
            self._end(request, FinishReason.CANCELLED)

    def finish(self, handle: Handle, attempt: int, kept: int) -> None:
        """Ends an output after `kept` tokens (the router found a stop string). A no-op when the request is gone."""
        if (request := self._roster.find(handle, attempt)) is not None:
            del request.output[kept:]
            self._end(request, FinishReason.STOP)

    def fail(self, handle: Handle, attempt: int, error: ServingError) -> None:
        """Ends a request that cannot go on, for a reason outside this engine. A no-op when it is gone."""
        if (request := self._roster.find(handle, attempt)) is not None:
            self._end(request, FinishReason.ERROR, error)

    # State that comes from another engine

    def ask(self, handle: Handle, attempt: int) -> None:
        """The sender of a request's state wants a promise of room. A no-op when the request is gone."""
        if (request := self._roster.find(handle, attempt)) is not None:
            self._scheduler.incoming.ask(request)

    def take_promised(self) -> list[Request]:
        """Requests that were promised room since the last call; `launch` promises."""
        return self._scheduler.take_promised()

    def receive(
        self,
        handle: Handle,
        attempt: int,
        rows: Sequence[UnitRow],
        token: EmittedToken,
        cached_tokens: int,
        expected: int | None = None,
    ) -> EngineNews:
        """The state of a promised request has arrived in `rows`, which it owns from now on, and its first token.

        The request, which must not be gone, continues at that token: no news of one that was moved here. With
        `expected`, its prompt checkpoint of that depth is still on its way: `receive_checkpoint` or
        `give_up_checkpoint` must follow, however the request ends.
        """
        request = self._roster.find(handle, attempt)
        assert request is not None, f"state came for handle {handle}, which is gone"
        self.holdings.receive(request, rows, request.known_len)
        request.computed = request.known_len
        if not request.retractions:
            request.cached_tokens = cached_tokens
        request.expected = expected
        self._scheduler.receive(request, cached_tokens)
        if expected is not None:
            self.pin(handle, attempt)
        news = EngineNews(self._steps)
        if request.moved:
            request.output.append(token)
            request.move(Phase.DECODING)
        else:
            self._append(request, token, news)
        return news

    def receive_checkpoint(self, handle: Handle, rows: Sequence[UnitRow]) -> None:
        """The expected prompt checkpoint is complete in `rows`, which are held."""
        request = self._roster.pinned(handle)
        assert request.expected is not None, f"nobody expects a checkpoint for handle {handle}"
        self._scheduler.receive_checkpoint(request, rows, request.expected)
        self._release_pinned(request)

    def give_up_checkpoint(self, handle: Handle) -> None:
        """The expected prompt checkpoint will not come."""
        request = self._roster.pinned(handle)
        request.expected = None
        self._release_pinned(request)

    def receive_last(self, handle: Handle, attempt: int, token: EmittedToken, cached_tokens: int) -> EngineNews | None:
        """The first token has arrived and ends the request: there is no state to go on with.

        None, and nothing has changed, when by this engine's rules it does not end there.
        """
        request = self._roster.find(handle, attempt)
        assert request is not None, f"a token came for handle {handle}, which is gone"
        if end_reason(request, len(request.output) + 1, token, self._stop_ids) is None:
            return None
        if not request.retractions:
            request.cached_tokens = cached_tokens
        news = EngineNews(self._steps)
        self._append(request, token, news)
        return news

    def take_recalled(self) -> list[tuple[Request, GenerateSpec]]:
        """Requests whose state was lost and that have room again: their senders are to be asked for this."""
        return [(one, one.asked_again(self._clock())) for one in self._scheduler.incoming.take_recalled()]

    def fall_back(self, handle: Handle, attempt: int) -> bool:
        """The sender of a recalled request has failed: it is computed here. False when it was none, or is gone."""
        return (request := self._roster.find(handle, attempt)) is not None and self._scheduler.fall_back(request)

    # State that goes to another engine

    def submit_for(self, receiver: WorkerId, spec: GenerateSpec, handle: Handle) -> None:
        """Queues a prompt whose state goes to a receiver, once that has promised room. Raises as `submit` does."""
        turns = self._scheduler.turns
        assert turns is not None, "only a prefill worker computes for others"
        require_output(spec)
        self.submit(spec, handle)
        turns.enter(handle, receiver)

    def take_due(self) -> list[Request]:
        """Prompts whose receivers are to be asked now."""
        return self._scheduler.take_due()

    def grant(self, handle: Handle, attempt: int) -> bool:
        """The receiver has promised room. False when the request is gone."""
        if self._roster.find(handle, attempt) is None:
            return False
        assert self._scheduler.turns is not None, "only a prefill worker computes for others"
        self._scheduler.turns.grant(handle)
        return True

    def pin(self, handle: Handle, attempt: int) -> None:
        """What the request owns is read from outside the steps; it stays whole until `unpin`, whatever happens."""
        self._roster.pin(handle, attempt)

    def unpin(self, handle: Handle) -> None:
        """Nobody reads the request's state any more. One that was being handed over has ended with this."""
        request = self._roster.pinned(handle)
        if request.phase is Phase.HANDING_OVER:
            self._roster.close(request, Phase.FINISHED)
        self._release_pinned(request)

    # Running requests that leave

    def park(self, handle: Handle, attempt: int) -> Request | None:
        """A decoding request stands still, pinned, so that its state can be read; `unpark` or `leave` must follow.

        Between two steps. None when it is gone. Raises SnapshotNotReady when no whole state of it is here now.
        """
        assert self._in_flight is None, "a step is in flight"
        request = self._roster.park(handle, attempt)
        if request is not None and request.tables is not None and request.tables.slot is not None:
            self._slots.whole(request.tables.slot)
        return request

    def unpark(self, handle: Handle) -> None:
        """A parked request goes on as if nothing had been, unless it has ended meanwhile."""
        request = self._roster.pinned(handle)
        if request.phase is Phase.HANDING_OVER:
            request.move(Phase.DECODING)
        self._release_pinned(request)

    def leave(self, handle: Handle, snapshot_id: str = "") -> None:
        """A parked request has left this worker, whose routers are told so, unless it has ended meanwhile.

        Its state stays whole until `unpin`.
        """
        request = self._roster.pinned(handle)
        if request.phase is Phase.HANDING_OVER:
            self._roster.close(request, Phase.ABORTED)
            self._roster.tell(Ended.of(request, FinishReason.MOVED, snapshot_id=snapshot_id))

    # Steps

    def launch(self) -> StepRecord | None:
        """Plans and starts the next step; None when there is nothing to compute.

        Deadlines are looked at by `expire`, once before: who holds room for whoever is late must hear of it first.
        """
        assert self._in_flight is None, "one step at a time is in flight"
        self.costs.begin_step()
        if (plan := self._scheduler.plan()) is None:
            return None
        try:
            self._in_flight = StepRecord.of(plan, self._runner.launch(plan))
        except SamplingFailed as failure:
            self._in_flight = StepRecord.of(plan, failure.output)
            for request in failure.failed:
                self._end(request, FinishReason.ERROR, SamplingFailed((request,), failure.output))
        return self._in_flight

    def commit(self, record: StepRecord) -> EngineNews:
        """Applies a launched step to its requests and tells what is new.

        Requests that ended meanwhile are released now.
        """
        assert record is self._in_flight, "steps are committed in launch order, once"
        self._in_flight = None
        self.costs.end_step(record.plan)
        self._prefilled += record.plan.extended_count
        news = EngineNews(record.plan.number)
        output, scored = record.output, 0
        sampled = iter(output.tokens([row.request.sampling.logprobs for row in record.plan.rows if row.samples]))
        going_on = (Phase.EXTENDING, Phase.DECODING)
        slots, depths = record.slots.tolist(), record.depths.tolist()
        for row, slot, depth in zip(record.plan.rows, slots, depths, strict=True):
            request = row.request
            token = next(sampled) if row.samples else None
            scores = None
            if not row.decode and row.scored:
                scores = PromptScores(request.handle, request.attempt, output.scores[scored])
                scored += 1
            if request.phase not in going_on:
                if row.checkpoint is not None:
                    self.holdings.discard_checkpoint(row.checkpoint)
                request.overtaken = True
                self._release_ended(request)
                continue
            assert request.computed == row.start
            request.computed = depth
            if slot != SINK:
                self._slots.advance(Slot(slot), depth)
            self._scheduler.settle(row)
            if scores is not None:
                news.scores.append(scores)
            if token is not None:
                self._append(request, token, news)
            elif request.ends_with_prompt and request.computed == request.known_len:
                self._finish(request, FinishReason.LENGTH, news)
        self._steps += 1
        return news

    def take_ended(self) -> list[Ended]:
        """Requests that ended outside a step (cancel, finish, deadline) since the last call."""
        return self._roster.take_told()

    def next_deadline(self) -> float | None:
        """The earliest deadline of a live request, on the engine's clock."""
        return self._roster.next_deadline()

    def expire(self) -> None:
        """Ends requests whose deadline has passed; `launch` does it too, an idle loop must at `next_deadline`."""
        for request in self._roster.overdue(self._clock()):
            late = f"request {request.request_id} passed its deadline after {len(request.output)} tokens"
            self._end(request, FinishReason.ERROR, DeadlineExceeded(late))

    # Inspection

    @property
    def idle(self) -> bool:
        """True when no request is live, and nobody reads what one has left."""
        return self._roster.empty

    def live_requests(self) -> tuple[Request, ...]:
        return self._roster.live

    def status(self) -> EngineStatus:
        return EngineStatus(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + self._scheduler.incoming.waiting_count,
            unpromised=self._scheduler.incoming.waiting_count,
            promised=len(self._scheduler.incoming.promised),
            steps=self._steps,
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            pools=self.holdings.counts(),
            retraction=self._scheduler.retraction_figures(),
            replay=self._slots.figures(),
            cache=replace(self.holdings.cache_figures(), prompts=self.costs.chosen()),
        )

    def check(self) -> None:
        """Asserts that every pool adds up and that running requests own exactly what is held."""
        self._scheduler.check()
        self._slots.check()

    # Inside

    def _request(self, spec: GenerateSpec, handle: Handle) -> Request:
        self._roster.require_new(handle)
        require_servable(spec, self.facts.vocab_size, self._stop_ids)
        return Request.of(spec, handle, self._clock())

    def _enter(self, request: Request) -> None:
        self._scheduler.submit(request)
        self._roster.enter(request)

    def _append(self, request: Request, token: EmittedToken, news: EngineNews) -> None:
        news.add(request.handle, request.attempt, len(request.output), token)
        request.output.append(token)
        self._generated += 1
        reason = end_reason(request, len(request.output), token, self._stop_ids)
        if reason is not None:
            self._finish(request, reason, news)
        elif request.phase is not Phase.DECODING:
            request.move(Phase.HANDING_OVER if self.facts.role is Role.PREFILL else Phase.DECODING)

    def _finish(self, request: Request, reason: FinishReason, news: EngineNews) -> None:
        """Ends a request with its step."""
        self._roster.close(request, Phase.FINISHED)
        self._release_ended(request)
        news.ended.append(Ended.of(request, reason))

    def _end(self, request: Request, reason: FinishReason, error: ServingError | None = None) -> None:
        """Ends a request between steps."""
        self._roster.close(request, Phase.FINISHED if reason is FinishReason.STOP else Phase.ABORTED)
        self._release_ended(request)
        self._roster.tell(Ended.of(request, reason, error))

    def _release_ended(self, request: Request) -> None:
        """Takes back what an ended request owns; if a step in flight or a reader needs it, they do it when done."""
        touched = self._in_flight is not None and any(row.request is request for row in self._in_flight.plan.rows)
        if not touched and not request.pinned:
            self._scheduler.drop(request)

    def _release_pinned(self, request: Request) -> None:
        """Nobody reads or awaits anything of the request outside of steps any more."""
        if self._roster.unpin(request):
            self._release_ended(request)
