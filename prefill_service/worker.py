"""The prefill worker: joins the engine thread with the calls of decode workers, from start to drain; knows no gRPC."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.engine_thread import EngineThread
from kv_transfer.hosting.exchange import Exchange
from kv_transfer.hosting.loading import Identity, Loaded
from kv_transfer.hosting.mailbox import Mailbox
from kv_transfer.hosting.neighbours import Neighbours
from kv_transfer.hosting.outlet import Outlet
from kv_transfer.hosting.status import describe, worker_status
from kv_transfer.hosting.tasks import OwnedTasks
from kv_transfer.outbox import Outbox
from prefill_service.commands import Command, PrefillEvent, Report, Submit
from prefill_service.serving import Serving
from prefill_service.station import PrefillStation
from segue.engine_facts import EngineStatus
from segue.errors import DeadlineExceeded, InvalidRequest, PeerLost, ServingError, WorkerUnavailable
from segue.handoff import FromReceiver, FromSender, Start
from segue.ids import Handle, WorkerId
from segue.wire import Transfers, WorkerDescription, WorkerStatus
from segue.wire.channel import PLAIN, TlsConfig

log = logging.getLogger(__name__)


class PrefillWorker:
    """Event-loop thread only. `broken` ends with the error that ended the engine thread, if one ever does."""

    def __init__(
        self,
        worker_id: WorkerId,
        transfer: TransferConfig | None = None,
        neighbours: Neighbours | None = None,
        tls: TlsConfig = PLAIN,
        *,
        submits_max: int = 1024,
    ) -> None:
        self.worker_id = worker_id
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._transfer = transfer or TransferConfig()
        self._neighbours = neighbours
        self._tls = tls
        self._mailbox: Mailbox[Command | None] = Mailbox(submits_max)
        self._outlet: Outlet[Sequence[PrefillEvent]] = Outlet(asyncio.get_running_loop(), self._deliver, self._break)
        self._refusal: str | None = "the worker is still loading"
        self._identity: Identity | None = None
        self._exchange: Exchange | None = None
        self._handles = itertools.count(1)
        self._servings: dict[Handle, Serving] = {}
        self._tasks = OwnedTasks(self._break)
        self._idle = asyncio.Event()
        self._question: asyncio.Future[EngineStatus] | None = None

    @property
    def ready(self) -> bool:
        """Whether new prompts are taken."""
        return self._refusal is None

    @property
    def exchange(self) -> Exchange:
        """This worker among its peers."""
        assert self._exchange is not None, "peers are met after the start"
        return self._exchange

    @property
    def live_count(self) -> int:
        """Calls that have not ended."""
        return len(self._servings)

    async def start(self, build: Callable[[], Loaded]) -> None:
        """Builds the engine on its thread and runs it. Raises what building it raised."""
        verify = self._transfer.verify
        thread: EngineThread[Command, Sequence[PrefillEvent]] = EngineThread(
            build, lambda loaded: PrefillStation.of(loaded, verify=verify), self._mailbox, self._outlet
        )
        thread.start()
        loaded = await asyncio.wrap_future(thread.built)
        assert loaded.built is not None, "a prefill worker has state to hand over"
        self._identity = loaded.identity
        self._exchange = await Exchange.open(
            self.worker_id, loaded.identity, loaded.built.storage, self._transfer, self._neighbours, self._tls
        )
        self._tasks.start(self._exchange.run(lambda peer: None))
        self._refusal = None

    def describe(self) -> WorkerDescription:
        """Model, limits and identity."""
        assert self._identity is not None, "a worker is described after its start"
        return describe(self.worker_id, self._identity)

    async def status(self) -> WorkerStatus:
        """The engine's own figures, between two steps. Concurrent callers share one question."""
        if self.broken.done() or self._identity is None:
            raise WorkerUnavailable(f"worker {self.worker_id}: {self._refusal}")
        if self._question is None or self._question.done():
            report = Report()
            self._mailbox.put(report)
            self._question = asyncio.wrap_future(report.answer)
        figures = await asyncio.shield(self._question)
        return worker_status(self.worker_id, self._identity.facts, figures, Transfers(), ready=self.ready)

    async def serve(self, incoming: AsyncIterator[FromReceiver]) -> AsyncGenerator[FromSender, None]:
        """One call of a decode worker, from its Start to its end. Raises what refused or broke it."""
        if self._refusal is not None:
            raise WorkerUnavailable(f"worker {self.worker_id}: {self._refusal}")
        start = await self._hello(incoming)
        outbox = Outbox(asyncio.get_running_loop(), self.exchange.storage.regions)
        serving = await self._accept(start, outbox)
        answering = asyncio.current_task()
        listening = asyncio.create_task(serving.listen(start, incoming))
        listening.add_done_callback(lambda task: _end_sending(task, outbox, answering))
        beside = [asyncio.create_task(work) for work in (serving.start_when_granted(), serving.beat())]
        try:
            async with aclosing(outbox.messages()) as messages:
                async for message in messages:
                    yield message
            listening.result()
        finally:
            serving.leave()
            for task in (listening, *beside):
                task.cancel()
            await asyncio.gather(listening, *beside, return_exceptions=True)

    async def drain(self, budget_s: float) -> None:
        """Lets calls that were taken finish within the budget, and ends the rest."""
        self._refusal = "the worker is shutting down"
        try:
            async with asyncio.timeout(budget_s):
                while self._servings and not self.broken.done():
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            log.warning("%d prompts did not finish within %.0f s", len(self._servings), budget_s)
        self._outlet.close()
        self._mailbox.put(None)
        await self._tasks.close()

    async def close(self) -> None:
        """After the last call has ended: leaves the peers."""
        if self._exchange is not None:
            await self._exchange.close()

    async def _hello(self, incoming: AsyncIterator[FromReceiver]) -> Start:
        try:
            async with asyncio.timeout(self._transfer.silence_s):
                first = await anext(incoming, None)
        except TimeoutError:
            raise DeadlineExceeded(f"no Start came within {self._transfer.silence_s} s") from None
        if not isinstance(first, Start):
            raise InvalidRequest("a handoff begins with Start")
        return first

    async def _accept(self, start: Start, outbox: Outbox) -> Serving:
        """Queues the prompt. Raises the ServingError that refused it."""
        handover = self.exchange.handover(start, outbox)
        handle, spec = Handle(next(self._handles)), start.request
        serving = Serving(
            handle,
            spec.attempt,
            handover,
            outbox,
            self._mailbox.put,
            heartbeat_s=self._transfer.heartbeat_s,
            silence_s=self._transfer.silence_s,
        )
        # Known before the engine takes it: it may be its turn at once.
        self._servings[handle] = serving
        submit = Submit(start.worker_id, spec, handle)
        try:
            self._mailbox.offer(submit)
            await asyncio.wrap_future(submit.accepted)
        except (ServingError, asyncio.CancelledError):
            serving.leave()
            self._tasks.start(self._release(handle, serving))
            raise
        self._tasks.start(self._release(handle, serving))
        return serving

    async def _release(self, handle: Handle, serving: Serving) -> None:
        await serving.release_when_settled()
        del self._servings[handle]
        if not self._servings:
            self._idle.set()

    def _deliver(self, events: Sequence[PrefillEvent]) -> None:
        for event in events:
            if (serving := self._servings.get(event.handle)) is not None:
                serving.on_event(event)

    def _break(self, error: BaseException) -> None:
        """The engine or a task broke an invariant: every prompt here is in doubt."""
        log.critical("the worker broke while %d prompts were live", len(self._servings), exc_info=error)
        self._refusal = "its engine broke"
        if not self.broken.done():
            self.broken.set_result(error)
        self._idle.set()


def _end_sending(listening: "asyncio.Task[None]", outbox: Outbox, answering: "asyncio.Task[Any] | None") -> None:
    """The receiver says no more, so what is still to be sent is the last."""
    outbox.finish()
    if not listening.cancelled() and isinstance(listening.exception(), PeerLost) and answering is not None:
        # It may have stopped reading as well, and then the call hangs in a write that never ends.
        answering.cancel()
