"""The prefill worker: joins the engine thread with the calls of decode workers, from start to drain; knows no gRPC."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing

from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.engine_thread import EngineThread
from kv_transfer.hosting.exchange import Exchange
from kv_transfer.hosting.loading import Identity, Loaded
from kv_transfer.hosting.mailbox import Mailbox
from kv_transfer.hosting.neighbours import Neighbours
from kv_transfer.hosting.outlet import Outlet
from kv_transfer.hosting.servings import Servings
from kv_transfer.hosting.status import describe, worker_status
from kv_transfer.hosting.tasks import OwnedTasks
from kv_transfer.sender_words import SenderEvent
from prefill_service.commands import Command, Report, Submit
from prefill_service.station import PrefillStation
from segue.engine_facts import EngineStatus
from segue.errors import TransferFailed, WorkerUnavailable
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
        self._outlet: Outlet[Sequence[SenderEvent]] = Outlet(asyncio.get_running_loop(), self._deliver, self._break)
        self._refusal: str | None = "the worker is still loading"
        self._identity: Identity | None = None
        self._exchange: Exchange | None = None
        self._handles = itertools.count(1)
        self._servings: Servings | None = None
        self._tasks = OwnedTasks(self._break)
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
        return 0 if self._servings is None else self._servings.live_count

    async def start(self, build: Callable[[], Loaded]) -> None:
        """Builds the engine on its thread and runs it. Raises what building it raised."""
        verify = self._transfer.verify
        thread: EngineThread[Command, Sequence[SenderEvent]] = EngineThread(
            build, lambda loaded: PrefillStation.of(loaded, verify=verify), self._mailbox, self._outlet
        )
        thread.start()
        loaded = await asyncio.wrap_future(thread.built)
        assert loaded.built is not None, "a prefill worker has state to hand over"
        self._identity = loaded.identity
        self._exchange = await Exchange.open(
            self.worker_id, loaded.identity, loaded.built.storage, self._transfer, self._neighbours, self._tls
        )
        self._servings = Servings(
            self._exchange, self._transfer, self._named, self._offer, self._mailbox.put, self._break
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
        if self._refusal is not None or self._servings is None:
            raise WorkerUnavailable(f"worker {self.worker_id}: {self._refusal}")
        async with aclosing(self._servings.serve(incoming)) as messages:
            async for message in messages:
                yield message

    async def drain(self, budget_s: float) -> None:
        """Lets calls that were taken finish within the budget, and ends the rest."""
        self._refusal = "the worker is shutting down"
        try:
            async with asyncio.timeout(budget_s):
                while self._servings is not None and self.live_count and not self.broken.done():
                    await self._servings.until_idle()
        except TimeoutError:
            log.warning("%d prompts did not finish within %.0f s", self.live_count, budget_s)
        self._outlet.close()
        self._mailbox.put(None)
        await self._tasks.close()
        if self._servings is not None:
            await self._servings.close()

    async def close(self) -> None:
        """After the last call has ended: leaves the peers."""
        if self._exchange is not None:
            await self._exchange.close()

    def _named(self, start: Start) -> tuple[Handle, int]:
        if start.request.moved is not None:
            raise TransferFailed(f"worker {self.worker_id} keeps no state of requests that have left it")
        return Handle(next(self._handles)), start.request.attempt

    def _offer(self, start: Start, handle: Handle) -> "Future[None]":
        submit = Submit(start.worker_id, start.request, handle)
        self._mailbox.offer(submit)
        return submit.accepted

    def _deliver(self, events: Sequence[SenderEvent]) -> None:
        assert self._servings is not None, "nothing was taken before the start"
        for event in events:
            self._servings.deliver(event)

    def _break(self, error: BaseException) -> None:
        """The engine or a task broke an invariant: every prompt here is in doubt."""
        log.critical("the worker broke while %d prompts were live", self.live_count, exc_info=error)
        self._refusal = "its engine broke"
        if not self.broken.done():
            self.broken.set_result(error)
        if self._servings is not None:
            self._servings.wake()
