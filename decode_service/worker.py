"""The worker: joins the engine thread with the sessions of its routers, from start to drain; knows nothing of gRPC."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from decode_service.attachments import Attachments
from decode_service.commands import Collect, Command, Depart, Report, WorkerFigures
from decode_service.fetches import Fetches
from decode_service.ledger import Ledger
from decode_service.live import LiveRequest
from decode_service.session import Session
from decode_service.snapshots.commands import WriteSnapshot
from decode_service.snapshots.service import Snapshots
from decode_service.station import DecodeNews, DecodeStation
from decode_service.stream import Stream, first_attach
from decode_service.submissions import Submissions
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from kv_transfer.hosting.engine_thread import EngineThread
from kv_transfer.hosting.exchange import Exchange
from kv_transfer.hosting.loading import Identity, Loaded
from kv_transfer.hosting.mailbox import Mailbox
from kv_transfer.hosting.neighbours import Neighbours
from kv_transfer.hosting.outlet import Outlet
from kv_transfer.hosting.servings import Servings
from kv_transfer.hosting.status import describe, worker_status
from kv_transfer.hosting.tasks import OwnedTasks
from segue.batch.request import FinishReason
from segue.batch.role import Role
from segue.errors import (
    InvalidRequest,
    RankLost,
    ServingError,
    SnapshotNotReady,
    SnapshotsOff,
    WorkerUnavailable,
)
from segue.handoff import FromReceiver, FromSender, Start
from segue.ids import Handle, WorkerId
from segue.wire import (
    Accepted,
    Attached,
    Cancel,
    Ended,
    Finish,
    GenerateSpec,
    Heartbeat,
    RouterMessage,
    SnapshotTaken,
    TakeSnapshot,
    Usage,
    WorkerDescription,
    WorkerMessage,
    WorkerStatus,
)
from segue.wire.channel import PLAIN, TlsConfig

log = logging.getLogger(__name__)

ENDING_SHARE = 0.5
"""Of a drain's budget: when less is left, routers hear that the worker is ending. Before, most streams end by
themselves and need no way out; what is left then is for writing the others, at a disk's speed, one after another.
"""


class Worker:
    """Event-loop thread only. `broken` ends with the error that ended the engine thread, if one ever does."""

    def __init__(
        self,
        config: WorkerConfig,
        worker_id: WorkerId,
        transfer: TransferConfig | None = None,
        neighbours: Neighbours | None = None,
        tls: TlsConfig = PLAIN,
        snapshots: Snapshots | None = None,
        *,
        submits_max: int = 1024,
    ) -> None:
        self.worker_id = worker_id
        self._snapshots = snapshots
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._config = config
        self._transfer = transfer or TransferConfig()
        self._neighbours = neighbours
        self._tls = tls
        self._ledger = Ledger(
            remember_s=config.session_grace_s, remembered_max=config.remembered_max, clock=time.monotonic
        )
        self._attachments = Attachments(config.session_grace_s, self._abandon)
        self._mailbox: Mailbox[Command | None] = Mailbox(submits_max)
        self._outlet: Outlet[DecodeNews] = Outlet(asyncio.get_running_loop(), self._deliver, self._break)
        self._exchange: Exchange | None = None
        self._fetches: Fetches | None = None
        self._servings: Servings | None = None
        # States that the engine thread keeps of requests that have left.
        self._kept_count = 0
        self._draining = self._ending = False
        self._refusal: str | None = "the worker is still loading"
        self._identity: Identity | None = None
        self._over = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starting_afresh: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._taking = Submissions(worker_id, self._ledger, self._mailbox, snapshots, self._control, lambda: self._over)
        self._submissions: set[asyncio.Task[bool]] = set()
        self._sweeping = OwnedTasks(self._break)
        self._question: asyncio.Future[WorkerFigures] | None = None

    @property
    def ready(self) -> bool:
        """Whether new requests are taken."""
        return self._refusal is None

    @property
    def live(self) -> tuple[LiveRequest, ...]:
        """Requests that have not ended, those included that the engine is still asked to take."""
        return self._ledger.live

    @property
    def exchange(self) -> Exchange | None:
        """This worker among its peers; None for one that computes its prompts itself, and before the start."""
        return self._exchange

    async def start(self, build: Callable[[], Loaded]) -> None:
        """Builds the engine on its thread and runs it. Raises what building it raised."""
        thread: EngineThread[Command, DecodeNews] = EngineThread(build, self._station, self._mailbox, self._outlet)
        thread.start()
        loaded = await asyncio.wrap_future(thread.built)
        self._identity = loaded.identity
        if self._snapshots is not None:
            self._sweeping.start(self._snapshots.keep_clean())
        if loaded.built is not None and loaded.identity.facts.role is Role.DECODE:
            self._exchange = await Exchange.open(
                self.worker_id, loaded.identity, loaded.built.storage, self._transfer, self._neighbours, self._tls
            )
            self._fetches = Fetches(self._exchange, self._mailbox.put, self._break, self._transfer)
            self._taking.fetches = self._fetches
            self._servings = Servings(
                self._exchange, self._transfer, self._named, self._collect, self._mailbox.put, self._break
            )
        self._refusal = None

    def describe(self) -> WorkerDescription:
        """Model, limits and identity, for a router that considers sending work."""
        assert self._identity is not None, "a worker is described after its start"
        return replace(describe(self.worker_id, self._identity), snapshots=self._snapshots is not None)

    @property
    def snapshots(self) -> Snapshots:
        """This worker's snapshot folder. Raises SnapshotsOff."""
        if self._snapshots is None:
            raise SnapshotsOff(f"worker {self.worker_id} has no snapshot folder")
        return self._snapshots

    async def take_snapshot(self, asked: TakeSnapshot) -> SnapshotTaken:
        """Writes the whole state of a live request. Returns when it is durable. Whoever is cancelled before the state
        is taken has withdrawn that.

        Raises SnapshotsOff, SnapshotNotReady, what kept it from being written, or WorkerUnavailable: it may still be.
        """
        command = WriteSnapshot.of(asked, self.snapshots.about(asked.about))
        if self._ledger.find(asked.router_id, asked.handle, asked.attempt) is None or self._over:
            raise SnapshotNotReady(f"worker {self.worker_id} has no live request {asked.handle} of {asked.router_id}")
        self._mailbox.offer(command)
        written = await self.snapshots.written(command, self._ended)
        return SnapshotTaken(written.snapshot_id, written.computed, written.bytes)

    async def generate(self, spec: GenerateSpec) -> Accepted:
        """Queues a request of an attached router. Raises the ServingError that refused it."""
        if self._refusal is not None:
            raise WorkerUnavailable(f"worker {self.worker_id}: {self._refusal}")
        session = self._ledger.session(spec.router_id)
        if session is None or not self._attachments.attached(session):
            raise WorkerUnavailable(f"router {spec.router_id} has no session attached to worker {self.worker_id}")
        request, older = self._ledger.open(session, spec)
        if older is not None:
            self._control(Cancel(older.handle, older.attempt))
        submission = asyncio.create_task(self._taking.submit(spec, request))
        self._submissions.add(submission)
        submission.add_done_callback(self._submissions.discard)
        try:
            restored = await asyncio.shield(submission)
        except asyncio.CancelledError:
            # The router left this call and will never know the handle; the engine may have the request already.
            submission.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._control(Cancel(request.handle, request.attempt))
            raise
        return Accepted(request.handle, restored)

    async def session(self, incoming: AsyncIterator[RouterMessage]) -> AsyncGenerator[WorkerMessage, None]:
        """One stream of a router, from its Attach to its end."""
        attach = await first_attach(incoming, self.worker_id, self._config.silence_s)
        session = self._ledger.open_session(attach.router_id)
        stream = Stream(
            session,
            incoming,
            partial(self._hear, session),
            lambda stream: self._attachments.detach(session, stream),
            heartbeat_s=self._config.heartbeat_s,
            silence_s=self._config.silence_s,
        )
        self._attachments.attach(session, stream)
        if self._ending:
            stream.end_soon()
        elif self._draining:
            stream.drain()
        if self._over:
            # A router that comes back is told what it has missed, and keeps nobody from closing the port.
            stream.finish()
        try:
            unknown, unnamed = session.resume(attach.resume)
            for request in unnamed:
                self._control(Cancel(request.handle, request.attempt))
            async with aclosing(stream.messages(Attached(self.worker_id, unknown))) as messages:
                async for message in messages:
                    yield message
        finally:
            self._attachments.detach(session, stream)

    async def serve(self, incoming: AsyncIterator[FromReceiver]) -> AsyncGenerator[FromSender, None]:
        """One call of a worker that goes on with a request that has left this one. Raises what refused or broke it."""
        if self._servings is None or self._over:
            raise WorkerUnavailable(f"worker {self.worker_id} keeps no state: {self._refusal}")
        async with aclosing(self._servings.serve(incoming)) as messages:
            async for message in messages:
                yield message

    async def status(self) -> WorkerStatus:
        """The engine's own figures, between two steps. Concurrent callers share one question."""
        if self._over or self._identity is None:
            raise WorkerUnavailable(f"worker {self.worker_id}: {self._refusal}")
        if self._question is None or self._question.done():
            report = Report()
            self._mailbox.put(report)
            self._question = asyncio.wrap_future(report.answer)
        figures = await asyncio.shield(self._question)
        facts = self._identity.facts
        told = worker_status(self.worker_id, facts, figures.engine, figures.transfers, ready=self.ready)
        return replace(told, snapshots=figures.snapshots)

    async def drain(self, budget_s: float) -> None:
        """Lets live requests go on elsewhere, or finish, within the budget, ends the rest, and ends every stream.

        Requests of a router that is away are not waited for.
        """
        self._refusal = "the worker is shutting down"
        self._draining = True
        self._attachments.end_grace()
        for stream in self._attachments.streams:
            stream.drain()
        ending = asyncio.get_running_loop().call_later(budget_s * (1 - ENDING_SHARE), self._say_ending)
        try:
            async with asyncio.timeout(budget_s):
                while (self._ledger.live or self._kept_count) and not self._over:
                    self._idle.clear()
                    await self._idle.wait()
        except TimeoutError:
            left = len(self._ledger.live)
            log.warning("%d requests did not finish, %d states were left, in %.0f s", left, self._kept_count, budget_s)
        finally:
            ending.cancel()
        self._mailbox.put(None)
        self._end_all(WorkerUnavailable(f"worker {self.worker_id} shut down before the request was finished"))
        if self._servings is not None:
            await self._servings.close()
        if self._fetches is not None:
            await self._fetches.close()
        await self._sweeping.close()
        if self._snapshots is not None:
            await self._snapshots.close()

    def _say_ending(self) -> None:
        self._ending = True
        for stream in self._attachments.streams:
            stream.end_soon()

    def _end_all(self, error: ServingError) -> None:
        """The engine is not listened to any more: every live request ends with `error`, every stream after it."""
        self._over = True
        if not self._ended.done():
            self._ended.set_result(None)
        self._outlet.close()
        self._attachments.end_grace()
        for request in self._ledger.live:
            usage = Usage(request.prompt_count, request.known)
            self._ledger.end(Ended(request.handle, request.attempt, FinishReason.ERROR, usage, error))
        for stream in self._attachments.streams:
            stream.finish()
        self._idle.set()

    def _deliver(self, news: DecodeNews) -> None:
        if self._over:
            return
        try:
            for one in news.engine:
                self._ledger.apply(one)
        except AssertionError as error:
            # Raised in a callback it would only be logged; it is as bad here as on the engine thread.
            self._break(error)
            return
        if self._fetches is not None:
            self._fetches.deliver(news.replies)
        if news.stuck and self._refusal is None:
            self._refusal = "too much of its memory waits for senders that do not answer"
            self._starting_afresh = asyncio.create_task(self._start_afresh())
        if self._servings is not None:
            for event in news.sent:
                self._servings.deliver(event)
        fewer, self._kept_count = news.kept_count < self._kept_count, news.kept_count
        if (fewer or any(one.ended for one in news.engine)) and self._refusal is not None:
            self._idle.set()

    async def _start_afresh(self) -> None:
        """What runs is finished; then the worker ends, which also ends everybody's way into its memory."""
        log.critical("worker %s drains and ends: %s", self.worker_id, self._refusal)
        await self.drain(self._config.drain_s)
        if not self.broken.done():
            self.broken.set_result(WorkerUnavailable(f"worker {self.worker_id} was stuck in quarantine"))

    def _break(self, error: BaseException) -> None:
        """The engine broke an invariant: the state of every request is in doubt, so all of them end here.

        A lost rank is no fault of theirs: another worker may continue them.
        """
        ids = ", ".join(request.request_id for request in self._ledger.live) or "none"
        log.critical("the engine broke while these requests were live: %s", ids, exc_info=error)
        self._refusal = "its engine broke"
        told = ServingError("the worker broke an invariant of its own while it held this request")
        self._end_all(error if isinstance(error, RankLost) else told)
        if not self.broken.done():
            self.broken.set_result(error)

    def _station(self, loaded: Loaded) -> DecodeStation:
        """On the engine thread."""
        if self._snapshots is None:
            return DecodeStation.of(loaded, self._transfer)
        taking = self._snapshots.taking(loaded, self._mailbox.put)
        return DecodeStation.of(loaded, self._transfer, taking, self._snapshots.copies(loaded, taking))

    def _hear(self, session: Session, message: Cancel | Finish | Heartbeat) -> None:
        if isinstance(message, Heartbeat):
            session.elsewhere = message.elsewhere
            self._move_out(session)
        else:
            self._control(message)

    def _move_out(self, session: Session) -> None:
        """While the worker drains, the requests of a router leave that knows where they can go on."""
        if not (self._draining and session.elsewhere) or self._servings is None:
            return
        for request in session.live:
            # The engine knows no other ones; they are asked again at the next sign of life.
            if request.accepted and not request.departing:
                request.departing = True
                self._mailbox.put(Depart(request.handle, request.attempt))

    def _named(self, start: Start) -> tuple[Handle, int]:
        if (moved := start.request.moved) is None:
            raise InvalidRequest(f"worker {self.worker_id} computes no prompts for others")
        return moved.handle, moved.attempt

    def _collect(self, start: Start, handle: Handle) -> "Future[None]":
        collect = Collect(handle, self._named(start)[1], start.request)
        self._mailbox.offer(collect)
        return collect.accepted

    def _control(self, message: Cancel | Finish) -> None:
        if self._ledger.leave(message):
            self._mailbox.put(message)

    def _abandon(self, session: Session) -> None:
        if session.live:
            log.warning("router %s did not come back; its %d requests end", session.router_id, len(session.live))
        for request in session.live:
            self._control(Cancel(request.handle, request.attempt))
        self._ledger.close_session(session)
