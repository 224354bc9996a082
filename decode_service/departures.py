"""Requests that are to leave this worker for another, on the engine thread: from the wish until the state is gone.

Who decodes is parked between two steps and leaves at once; its state is kept for one worker that comes for it, or until
the limit has passed. Who owns nothing yet is cancelled, which tells its router to go on elsewhere. All others run on
until they decode: prompts that are extended, states on their way here, requests that are off the device.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decode_service.commands import Collect, Depart
from decode_service.intake import Intake
from kv_transfer.export import Export
from kv_transfer.sender_words import Chunk, Complete, Due, Granted, SenderEvent, Unpin, Unwanted
from segue.batch.lifecycle import Phase
from segue.batch.news import Ended, Usage
from segue.batch.request import FinishReason, Request
from segue.engine import Engine
from segue.errors import TransferFailed
from segue.ids import Handle
from segue.tokens import token_array


@dataclass(slots=True)
class _Kept:
    request: Request
    until: float
    claimed: bool = False


class Departures:
    """Owns what is kept of requests that have left. `take_events` gives what there is to tell those who come for it."""

    def __init__(
        self,
        engine: Engine,
        intake: Intake,
        export: Export,
        *,
        verify: bool,
        keep_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._intake = intake
        self._export = export
        self._verify = verify
        self._keep_s = keep_s
        self._clock = clock
        # Attempts of requests that are to leave.
        self._leaving: dict[Handle, int] = {}
        self._kept: dict[Handle, _Kept] = {}
        self._events: list[SenderEvent] = []
        self.moved_out = self.moved_lost = 0

    @property
    def kept_count(self) -> int:
        """States that are kept for others."""
        return len(self._kept)

    def apply(self, command: Depart | Collect | Granted | Unwanted | Unpin) -> None:
        match command:
            case Depart():
                self._leaving[command.handle] = command.attempt
            case Collect():
                self._collect(command)
            case Granted():
                self._hand_over(command)
            case Unpin():
                # A call that was refused has nothing to give back.
                if (kept := self._kept.get(command.handle)) is not None and kept.claimed:
                    self._release(command.handle, delivered=command.delivered)
            case Unwanted():
                pass  # Unpin follows, and nobody else gets it.

    def leave(self) -> None:
        """Everybody leaves who is to and can. Between two steps."""
        if not self._leaving:
            return
        live = {request.handle: request for request in self._engine.live_requests()}
        self._leaving = {
            handle: attempt
            for handle, attempt in self._leaving.items()
            if handle in live and live[handle].attempt == attempt
        }
        for handle, attempt in self._leaving.items():
            request = live[handle]
            if request.stands_whole:
                self._engine.park(handle, attempt)
                self._engine.leave(handle)
                self._kept[handle] = _Kept(request, self._clock() + self._keep_s)
            elif self._owns_nothing(request):
                self._engine.cancel(handle, attempt)

    def dismiss(self, handle: Handle, attempt: int) -> None:
        """Its router wants no more of a request that may have left. A no-op when it has not, or is being fetched."""
        kept = self._kept.get(handle)
        if kept is not None and kept.request.attempt == attempt and not kept.claimed:
            del self._kept[handle]
            self._engine.unpin(handle)

    def expire(self) -> None:
        """Gives up what nobody has come for within the limit."""
        now = self._clock()
        for handle in [handle for handle, kept in self._kept.items() if not kept.claimed and kept.until <= now]:
            self._release(handle, delivered=False)

    def next_expiry(self) -> float | None:
        """When `expire` has something to do next, on the clock."""
        return min((kept.until for kept in self._kept.values() if not kept.claimed), default=None)

    def take_events(self) -> Sequence[SenderEvent]:
        events, self._events = self._events, []
        return events

    def _owns_nothing(self, request: Request) -> bool:
        """Whether nothing is lost if it goes on elsewhere: no state that is on its way here, or is kept for it."""
        if request.phase is Phase.AWAITING:
            return not request.moved and not self._intake.is_coming(request.handle)
        return request.phase is Phase.WAITING

    def _collect(self, command: Collect) -> None:
        if not command.accepted.set_running_or_notify_cancel():
            return  # The receiver left before its turn.
        spec, kept = command.spec, self._kept.get(command.handle)
        if kept is None or kept.request.request_id != spec.request_id:
            command.accepted.set_exception(TransferFailed(f"request {spec.request_id}: its state is not kept here"))
            return
        assert not kept.claimed, f"request {spec.request_id}: its state is being handed over, and is claimed again"
        request = kept.request
        told = token_array((*spec.prompt, *spec.emitted)).tobytes()
        same = request.attempt == command.attempt and request.cache_salt == spec.cache_salt
        if not same or request.token_bytes(0, request.known_len) != told:
            command.accepted.set_exception(
                TransferFailed(f"request {spec.request_id}: the state that is kept here is that of another one")
            )
            return
        kept.claimed = True
        command.accepted.set_result(None)
        self._events.append(Due(request.handle, request.computed, None))

    def _hand_over(self, granted: Granted) -> None:
        if (kept := self._kept.get(granted.handle)) is None:
            return
        request, plan, handle = kept.request, granted.plan, granted.handle
        usage = Usage(request.prompt_len, len(request.output), request.cached_tokens)
        if plan.terms.prompt_tokens != request.computed:
            error = TransferFailed(
                f"request {request.request_id}: room for {plan.terms.prompt_tokens} positions was granted, its state "
                f"has {request.computed}"
            )
            self._events.append(Ended(handle, request.attempt, FinishReason.ERROR, usage, error))
            return
        chunk: Chunk = self._export.chunk(request, 0, request.computed, plan)
        digests = self._export.digests(request, plan) if self._verify else ()
        self._events += [chunk, Complete(handle, request.output[-1], usage, digests, None)]

    def _release(self, handle: Handle, *, delivered: bool) -> None:
        del self._kept[handle]
        self._engine.unpin(handle)
        self.moved_out += delivered
        self.moved_lost += not delivered
