"""The engine of one worker: requests in, steps launched and committed, news out. Knows no tensors, no async, no gRPC.

A step is two calls, `launch` and `commit`, joined by a StepRecord: between them requests may be cancelled or finished,
and what the step still touches is released only when it has been committed. State that comes from another engine enters
by `expect`, `ask` and `receive`; state that goes to one is `pin`ned while it is read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from segue.batch.failure import SamplingFailed
from segue.batch.holdings import Holdings, SlotDoor
from segue.batch.lifecycle import Phase
from segue.batch.news import Ended, EngineNews, Usage
from segue.batch.request import EmittedToken, FinishReason, Request
from segue.batch.role import Role
from segue.batch.rules import require_servable
from segue.batch.sampling import SamplingDefaults
from segue.batch.scheduler import Scheduler
from segue.batch.step import StepOutput, StepPlan, StepRecord
from segue.batch.submission import GenerateSpec
from segue.errors import DeadlineExceeded, ServingError
from segue.handoff import UnitRow
from segue.ids import SINK, Handle, Slot, WorkerId
from segue.state.layout import UnitLayout
from segue.state.pool import PoolCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the outside may know of the engine's model and limits."""

    name: str
    vocab_size: int
    max_len: int
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    page_tokens: int
    dtype: str
    deterministic: bool
    window: int | None
    layouts: tuple[UnitLayout, ...]
    role: Role = Role.BOTH


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Load and the disjoint sets of every pool.

    Of the `waiting`, `unpromised` await their state from another worker and have no promise of room yet; `promised`
    ones have it, and are not among the waiting.
    """

    running: int
    waiting: int
    unpromised: int
    promised: int
    steps: int
    generated_tokens: int
    prefill_tokens: int
    pools: tuple[PoolCounts, ...]


class StepRunner(Protocol):
    """Computes a planned step (the model runner in a worker, a script in tests)."""

    def launch(self, plan: StepPlan) -> StepOutput:
        """One output per sampling row of the plan, in row order.

        Raises SamplingFailed, with the output of all other rows, when rows have no token to choose.
        """


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
        self._holdings = holdings
        self._slots = slots
        self._runner = runner
        self._clock = clock
        self._stop_ids = frozenset(facts.eos_token_ids)
        self._live: dict[Handle, Request] = {}
        # Ended, but still read by somebody.
        self._pinned: dict[Handle, Request] = {}
        self._in_flight: StepRecord | None = None
        self._ended_early: list[Ended] = []
        self._steps = self._generated = self._prefilled = 0

    # Requests

    def submit(self, spec: GenerateSpec, handle: Handle) -> None:
        """Queues a request. Raises InvalidRequest, ContextTooLong or QueueFull, and then keeps nothing of it."""
        self._enter(self._request(spec, handle))

    def expect(self, spec: GenerateSpec, handle: Handle) -> None:
        """Takes a request whose prompt another worker computes. Raises as `submit` does."""
        request = self._request(spec, handle)
        request.phase = Phase.AWAITING
        self._enter(request)

    def cancel(self, handle: Handle, attempt: int) -> None:
        """Ends a request whose client left. A no-op when it is unknown, of another attempt, or ended."""
        if (request := self._find(handle, attempt)) is not None:
            self._end(request, FinishReason.CANCELLED)

    def finish(self, handle: Handle, attempt: int, kept: int) -> None:
        """Ends an output after `kept` tokens (the router found a stop string). A no-op when the request is gone."""
        if (request := self._find(handle, attempt)) is not None:
            del request.output[kept:]
            self._end(request, FinishReason.STOP)

    def output_since(self, handle: Handle, attempt: int, index: int) -> list[EmittedToken] | None:
        """Output tokens from an absolute index on, None when the request is not held."""
        request = self._find(handle, attempt)
        return None if request is None else request.output[index:]

    def fail(self, handle: Handle, attempt: int, error: ServingError) -> None:
        """Ends a request that cannot go on, for a reason outside this engine. A no-op when it is gone."""
        if (request := self._find(handle, attempt)) is not None:
            self._end(request, FinishReason.ERROR, error)

    # State that comes from another engine

    def ask(self, handle: Handle, attempt: int) -> None:
        """The sender of a request's state wants a promise of room. A no-op when the request is gone."""
        if (request := self._find(handle, attempt)) is not None:
            self._scheduler.incoming.ask(request)

    def take_promised(self) -> list[Request]:
        """Requests that were promised room since the last call; `launch` promises."""
        return self._scheduler.incoming.take_promised()

    def receive(
        self, handle: Handle, attempt: int, rows: Sequence[UnitRow], token: EmittedToken, cached_tokens: int
    ) -> EngineNews:
        """The state of a promised request has arrived in `rows`, which it owns from now on, and its first token.

        The request continues at that token. It must not be gone.
        """
        request = self._find(handle, attempt)
        assert request is not None, f"state came for handle {handle}, which is gone"
        self._holdings.receive(request, rows, request.known_len)
        self._scheduler.receive(request)
        request.computed = request.known_len
        request.cached_tokens = cached_tokens
        news = EngineNews(self._steps)
        self._append(request, token, news)
        return news

    def receive_last(self, handle: Handle, attempt: int, token: EmittedToken, cached_tokens: int) -> EngineNews | None:
        """The first token has arrived and ends the request: there is no state to go on with.

        None, and nothing has changed, when by this engine's rules it does not end there.
        """
        request = self._find(handle, attempt)
        assert request is not None, f"a token came for handle {handle}, which is gone"
        if self._end_reason(request, len(request.output) + 1, token) is None:
            return None
        request.cached_tokens = cached_tokens
        news = EngineNews(self._steps)
        self._append(request, token, news)
        return news

    # State that goes to another engine

    def submit_for(self, receiver: WorkerId, spec: GenerateSpec, handle: Handle) -> None:
        """Queues a prompt whose state goes to a receiver, once that has promised room. Raises as `submit` does."""
        turns = self._scheduler.turns
        assert turns is not None, "only a prefill worker computes for others"
        self.submit(spec, handle)
        turns.enter(handle, receiver)

    def take_due(self) -> list[Request]:
        """Prompts whose receivers are to be asked now."""
        return self._scheduler.take_due()

    def grant(self, handle: Handle, attempt: int) -> bool:
        """The receiver has promised room. False when the request is gone."""
        if self._find(handle, attempt) is None:
            return False
        assert self._scheduler.turns is not None, "only a prefill worker computes for others"
        self._scheduler.turns.grant(handle)
        return True

    def pin(self, handle: Handle, attempt: int) -> None:
        """What the request owns is read from outside the steps; it stays whole until `unpin`, whatever happens."""
        request = self._find(handle, attempt)
        assert request is not None, f"handle {handle} is gone, there is nothing to pin"
        assert not request.pinned
        request.pinned = True
        self._pinned[handle] = request

    def unpin(self, handle: Handle) -> None:
        """Nobody reads the request's state any more. One that was being handed over has ended with this."""
        request = self._pinned.pop(handle)
        request.pinned = False
        if request.phase is Phase.HANDING_OVER:
            self._close(request, Phase.FINISHED)
        self._release_ended(request)

    # Steps

    def launch(self) -> StepRecord | None:
        """Plans and starts the next step; None when there is nothing to compute."""
        assert self._in_flight is None, "one step at a time is in flight"
        self.expire()
        plan = self._scheduler.plan()
        if plan is None:
            return None
        try:
            self._in_flight = self._record(plan, self._runner.launch(plan))
        except SamplingFailed as failure:
            self._in_flight = self._record(plan, failure.output)
            for request in failure.failed:
                self._end(request, FinishReason.ERROR, SamplingFailed((request,), failure.output))
        return self._in_flight

    def commit(self, record: StepRecord) -> EngineNews:
        """Applies a launched step to its requests and tells what is new.

        Requests that ended meanwhile are released now.
        """
        assert record is self._in_flight, "steps are committed in launch order, once"
        self._in_flight = None
        news = EngineNews(record.plan.number)
        output, sampled = record.output, 0
        for i, row in enumerate(record.plan.rows):
            request = row.request
            token = None
            if row.samples:
                token = _emitted(output, sampled, request)
                sampled += 1
            self._prefilled += 0 if row.decode else row.count
            if request.phase not in (Phase.EXTENDING, Phase.DECODING):
                self._release_ended(request)
                continue
            assert request.computed == row.start
            request.computed = int(record.depths[i])
            if record.slots[i] != SINK:
                self._slots.advance(Slot(int(record.slots[i])), request.computed, pending=0)
            self._holdings.free_out_of_window(request)
            if token is not None:
                self._append(request, token, news)
        self._steps += 1
        return news

    def take_ended(self) -> list[Ended]:
        """Requests that ended outside a step (cancel, finish, deadline) since the last call."""
        ended, self._ended_early = self._ended_early, []
        return ended

    def next_deadline(self) -> float | None:
        """The earliest deadline of a live request, on the engine's clock."""
        return min((r.deadline for r in self._live.values() if r.deadline is not None), default=None)

    def expire(self) -> None:
        """Ends requests whose deadline has passed; `launch` does it too, an idle loop must at `next_deadline`."""
        now = self._clock()
        for request in [r for r in self._live.values() if r.deadline is not None and r.deadline <= now]:
            error = DeadlineExceeded(
                f"request {request.request_id} passed its deadline after {len(request.output)} tokens"
            )
            self._end(request, FinishReason.ERROR, error)

    # Inspection

    @property
    def idle(self) -> bool:
        """True when no request is live, and nobody reads what one has left."""
        return not self._live and not self._pinned

    def live_requests(self) -> tuple[Request, ...]:
        return tuple(self._live.values())

    def status(self) -> EngineStatus:
        return EngineStatus(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting) + self._scheduler.incoming.waiting_count,
            unpromised=self._scheduler.incoming.waiting_count,
            promised=len(self._scheduler.incoming.promised),
            steps=self._steps,
            generated_tokens=self._generated,
            prefill_tokens=self._prefilled,
            pools=self._holdings.counts(),
        )

    def check(self) -> None:
        """Asserts that every pool adds up and that running requests own exactly what is held."""
        self._holdings.check(self._scheduler.running)

    # Inside

    def _request(self, spec: GenerateSpec, handle: Handle) -> Request:
        assert handle not in self._live, f"handle {handle} is in use"
        assert handle not in self._pinned, f"handle {handle} is still being read"
        require_servable(spec, self.facts.vocab_size, self._stop_ids)
        now = self._clock()
        return Request(
            handle=handle,
            request_id=spec.request_id,
            attempt=spec.attempt,
            prompt=spec.prompt,
            sampling=spec.sampling,
            priority=spec.priority,
            deadline=None if spec.deadline_s is None else now + spec.deadline_s,
            extension=spec.extension,
            output=[EmittedToken(token, 0.0) for token in spec.emitted],
            arrival=now,
        )

    def _enter(self, request: Request) -> None:
        self._scheduler.submit(request)
        self._live[request.handle] = request

    def _find(self, handle: Handle, attempt: int) -> Request | None:
        request = self._live.get(handle)
        return request if request is not None and request.attempt == attempt else None

    def _record(self, plan: StepPlan, output: StepOutput) -> StepRecord:
        slots = [row.request.tables.slot or SINK if row.request.tables else SINK for row in plan.rows]
        depths = [row.depth for row in plan.rows]
        return StepRecord(plan, np.asarray(slots, dtype=np.int64), np.asarray(depths, dtype=np.int64), output)

    def _append(self, request: Request, token: EmittedToken, news: EngineNews) -> None:
        news.add(request.handle, request.attempt, len(request.output), token)
        request.output.append(token)
        self._generated += 1
        reason = self._end_reason(request, len(request.output), token)
        if reason is not None:
            self._close(request, Phase.FINISHED)
            self._release_ended(request)
            news.ended.append(_ended(request, reason))
        elif request.phase is not Phase.DECODING:
            request.move(Phase.HANDING_OVER if self.facts.role is Role.PREFILL else Phase.DECODING)

    def _end_reason(self, request: Request, count: int, token: EmittedToken) -> FinishReason | None:
        """Why the output ends with `token` as its `count`-th, None when it goes on."""
        sampling = request.sampling
        is_stop = (token.token_id in self._stop_ids and not sampling.ignore_eos) or (
            token.token_id in sampling.stop_token_ids
        )
        if count >= sampling.min_tokens and is_stop:
            return FinishReason.STOP
        return FinishReason.LENGTH if count >= sampling.max_tokens else None

    def _end(self, request: Request, reason: FinishReason, error: ServingError | None = None) -> None:
        """Ends a request between steps."""
        self._close(request, Phase.FINISHED if reason is FinishReason.STOP else Phase.ABORTED)
        self._release_ended(request)
        self._ended_early.append(_ended(request, reason, error))

    def _release_ended(self, request: Request) -> None:
        """Takes back what an ended request owns; if a step in flight or a reader needs it, they do it when done."""
        touched = self._in_flight is not None and any(row.request is request for row in self._in_flight.plan.rows)
        if not touched and not request.pinned:
            self._scheduler.drop(request)

    def _close(self, request: Request, phase: Phase) -> None:
        request.move(phase)
        del self._live[request.handle]


def _emitted(output: StepOutput, index: int, request: Request) -> EmittedToken:
    token = int(output.token_ids[index])
    wanted = request.sampling.logprobs
    if wanted is None:
        return EmittedToken(token, 0.0)
    if wanted and output.top is not None:
        ids, values = output.top.token_ids[index, :wanted].tolist(), output.top.logprobs[index, :wanted].tolist()
        return EmittedToken(token, float(output.logprobs[index]), tuple(zip(ids, values, strict=True)))
    return EmittedToken(token, float(output.logprobs[index]))


def _ended(request: Request, reason: FinishReason, error: ServingError | None = None) -> Ended:
    usage = Usage(request.prompt_len, len(request.output), request.cached_tokens)
    return Ended(request.handle, request.attempt, reason, usage, error)
