"""The engine thread's side of a prefill worker: carries out commands, steps the engine, exports what is complete."""

import time
from collections.abc import Sequence

from kv_transfer.export import Export
from kv_transfer.hosting.loading import Loaded
from kv_transfer.plan import TransferPlan
from kv_transfer.sender_words import Complete, Due, Granted, Last, SenderEvent, Unpin, Unwanted
from prefill_service.commands import Command, Report, Submit
from segue.batch.lifecycle import Phase
from segue.batch.news import EngineNews, Usage
from segue.batch.request import Request
from segue.batch.step import StepRecord
from segue.engine import Engine
from segue.errors import ServingError
from segue.ids import Handle
from segue.tokens import EmittedToken


class PrefillStation:
    """Owns the engine. `verify` takes digests of all that is handed over."""

    def __init__(self, engine: Engine, export: Export, *, verify: bool) -> None:
        self._engine = engine
        self._export = export
        self._verify = verify
        self._plans: dict[Handle, TransferPlan] = {}
        # Prompts that are read by writers, and how much of each they were given.
        self._sent: dict[Handle, int] = {}
        self._busy = False

    @staticmethod
    def of(loaded: Loaded, *, verify: bool) -> "PrefillStation":
        """A station for what was loaded."""
        assert loaded.built is not None, "there is no state to hand over"
        export = Export(loaded.built.storage, loaded.engine.facts.page_tokens)
        return PrefillStation(loaded.engine, export, verify=verify)

    def apply(self, command: Command) -> None:
        match command:
            case Submit():
                self._submit(command)
            case Granted():
                if self._engine.grant(command.handle, command.attempt):
                    self._plans[command.handle] = command.plan
            case Unwanted():
                self._engine.cancel(command.handle, command.attempt)
            case Unpin():
                if self._sent.pop(command.handle, None) is not None:
                    self._engine.unpin(command.handle)
            case Report():
                command.answer.set_result(self._engine.status())

    def turn(self) -> Sequence[SenderEvent] | None:
        events: list[SenderEvent] = []
        self._engine.expire()
        record = self._engine.launch()
        if record is not None:
            events += self._exported(record, self._engine.commit(record))
        self._busy = record is not None
        for request in self._engine.take_due():
            events.append(Due(request.handle, request.known_len, self._engine.holdings.offered_checkpoint(request)))
        for ended in self._engine.take_ended():
            self._plans.pop(ended.handle, None)
            events.append(ended)
        return events or None

    def wait_s(self) -> float | None:
        if self._busy:
            return 0
        due = self._engine.next_deadline()
        return None if due is None else max(1e-3, due - time.monotonic())

    def check(self) -> None:
        """Asserts that every pool adds up."""
        self._engine.check()

    def _submit(self, command: Submit) -> None:
        if not command.accepted.set_running_or_notify_cancel():
            return  # The receiver left before its turn.
        try:
            self._engine.submit_for(command.receiver, command.spec, command.handle)
        except ServingError as error:
            command.accepted.set_exception(error)
        else:
            command.accepted.set_result(None)

    def _exported(self, record: StepRecord, news: EngineNews) -> list[SenderEvent]:
        """What the step has completed of prompts that are wanted elsewhere, and first tokens."""
        tokens = dict(zip(news.handles, news.tokens, strict=True))
        ended = {end.handle: end for end in news.ended}
        events: list[SenderEvent] = []
        for row in record.plan.rows:
            request, handle = row.request, row.request.handle
            if (end := ended.get(handle)) is not None:
                self._plans.pop(handle, None)
                events.append(Last(handle, tokens[handle], end.reason, end.usage))
            # Without a plan, the first token is the last, and nobody waits for the state.
            elif request.phase in (Phase.EXTENDING, Phase.HANDING_OVER) and (plan := self._plans.get(handle)):
                if handle not in self._sent:
                    self._engine.pin(handle, request.attempt)
                # The first chunk brings along what was cached.
                events.append(self._export.chunk(request, self._sent.get(handle, 0), row.depth, plan))
                self._sent[handle] = row.depth
                if request.phase is Phase.HANDING_OVER:
                    del self._plans[handle]
                    events.append(self._complete(request, tokens[handle], plan))
        return events

    def _complete(self, request: Request, token: EmittedToken, plan: TransferPlan) -> Complete:
        usage = Usage(request.prompt_len, len(request.output), request.cached_tokens)
        digests = self._export.digests(request, plan) if self._verify else ()
        checkpoint = None
        if plan.checkpoint() and (found := self._engine.holdings.prompt_checkpoint(request)) is not None:
            checkpoint = self._export.checkpoint(found, plan, verify=self._verify)
        return Complete(request.handle, token, usage, digests, checkpoint)
