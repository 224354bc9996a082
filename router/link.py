"""One worker as the router knows it: its session, what is live on it, and how both survive a broken stream.

The stream may break without the worker having died: live choices are named again at re-attachment, with the next output
index each, and only after a grace are they given up, or as soon as nobody listens at the address any more. A worker
that comes back under another id has lost them all.
"""

import asyncio
import logging
from collections.abc import Callable
from enum import StrEnum

from router.breaker import Breaker
from router.config import RouterConfig
from router.inbox import Inbox
from router.mailroom import Mailroom
from router.probe import nobody_listens
from segue.errors import FingerprintMismatch, ServingError, WorkerUnavailable
from segue.ids import RouterId, WorkerId
from segue.wire import (
    PROTOCOL_VERSION,
    Accepted,
    Attach,
    Attached,
    Finish,
    GenerateSpec,
    Heartbeat,
    RouterMessage,
    StepNews,
    WorkerDescription,
    WorkerStatus,
)
from segue.wire.channel import PLAIN, TlsConfig
from segue.wire.client import SessionCall, WorkerClient

log = logging.getLogger("segue.router")

_OUTGOING_MAX = 8192


class WorkerLost(WorkerUnavailable):
    """The worker that held a choice is gone, or has forgotten it; another may continue it."""


class LinkState(StrEnum):
    """How far the session is."""

    CONNECTING = "connecting"
    READY = "ready"
    BROKEN = "broken"


class Link:
    """The session with the worker at one address. `run` keeps it up; `changed` is called when it comes or goes."""

    def __init__(
        self,
        address: str,
        router_id: RouterId,
        config: RouterConfig,
        changed: Callable[[], None],
        tls: TlsConfig = PLAIN,
        elsewhere: "Callable[[Link], bool]" = lambda _: False,
    ) -> None:
        """`elsewhere` says whether there is another worker that could go on with this one's choices."""
        self.address = address
        self.state = LinkState.CONNECTING
        # It takes nothing new, until another process answers at the address.
        self.draining = False
        # And what still runs there is lost soon, unless it leaves.
        self.ending = False
        self._elsewhere = elsewhere
        self.description: WorkerDescription | None = None
        self.breaker = Breaker(config.breaker_faults, config.breaker_cooldown_s)
        self._router_id = router_id
        self._config = config
        self._changed = changed
        self._client = WorkerClient(address, tls)
        self._mail = Mailroom(self._send)
        self._outgoing: asyncio.Queue[RouterMessage] = asyncio.Queue(_OUTGOING_MAX)
        self._session: SessionCall | None = None
        self._heard_at = 0.0
        # Counts the moments at which live choices were named or given up; an acceptance that straddles one is void.
        self._epoch = 0
        self._grace: asyncio.TimerHandle | None = None
        # What the worker decides on, and whoever waits for that.
        self._calls: dict[asyncio.Task[Accepted], asyncio.Future[None]] = {}

    @property
    def load(self) -> int:
        """Choices that this router has on the worker, those being accepted included."""
        return len(self._mail.live) + len(self._calls)

    @property
    def keeps_snapshots(self) -> bool:
        """Whether the worker has a snapshot folder."""
        return self.description is not None and self.description.snapshots

    @property
    def client(self) -> WorkerClient:
        """For calls that are not about the life of a choice."""
        return self._client

    async def generate(self, spec: GenerateSpec, inbox: Inbox) -> bool:
        """Queues a choice; its tokens go to `inbox`. Returns whether it goes on from a snapshot.

        Raises what the worker refused it with, or WorkerUnavailable.
        """
        if self.state is not LinkState.READY:
            raise WorkerUnavailable(f"worker {self.address} is {self.state}")
        epoch = self._epoch
        # A task of its own: a client that leaves meanwhile must not leave an accepted request behind.
        call = asyncio.create_task(self._client.generate(spec, self._timeout_s(spec)))
        waiting = self._calls[call] = asyncio.get_running_loop().create_future()
        call.add_done_callback(lambda _: _wake(waiting))
        self._mail.expect()
        try:
            await waiting
        except asyncio.CancelledError:
            call.add_done_callback(lambda done: self._abandon(done, spec.attempt))
            raise
        if not call.done():
            call.add_done_callback(lambda done: self._abandon(done, spec.attempt))
            raise WorkerUnavailable(f"worker {self.address} was lost while it was to accept the request")
        del self._calls[call]
        try:
            accepted = call.result()
        except ServingError:
            self._mail.expected()
            raise
        if epoch != self._epoch:
            self._mail.drop(accepted.handle, spec.attempt)
            self._mail.expected()
            raise WorkerUnavailable(f"the session with worker {self.address} broke while it accepted the request")
        self._mail.open(accepted.handle, inbox)
        self._mail.expected()
        return accepted.restored

    def _timeout_s(self, spec: GenerateSpec) -> float:
        """A worker may have to read a whole state from its disk before it accepts: one that is named, or a copy."""
        copies = bool(spec.emitted) and spec.moved is None and self.keeps_snapshots
        return self._config.snapshot_timeout_s if spec.snapshot_id or copies else self._config.call_timeout_s

    def _abandon(self, call: asyncio.Task[Accepted], attempt: int) -> None:
        """The caller has left while the worker was deciding: an acceptance is taken back."""
        del self._calls[call]
        if not call.cancelled() and call.exception() is None:
            self._mail.drop(call.result().handle, attempt)
        self._mail.expected()

    def cancel(self, inbox: Inbox) -> None:
        """The choice is not wanted any more. Nothing happens when it is not live here."""
        self._mail.close(inbox)

    def dismiss(self, inbox: Inbox, worker_id: WorkerId) -> None:
        """Nobody goes on from the state of a choice that has left that worker. Nothing happens when that is gone."""
        if self.is_still(worker_id) and self.state is LinkState.READY:
            self._mail.drop(inbox.handle, inbox.attempt)

    def is_still(self, worker_id: WorkerId) -> bool:
        """Whether that process is the one that was here last, so that what it has said is said of this."""
        return self.description is not None and self.description.worker_id == worker_id

    def finish(self, inbox: Inbox, kept: int) -> None:
        """The choice ends after `kept` output tokens, all of which have been seen."""
        assert kept <= inbox.next_index, f"{kept} tokens are kept of {inbox.next_index}"
        if self._mail.holds(inbox):
            inbox.finishing = True
            self._send(Finish(inbox.handle, inbox.attempt, kept))

    def fail_all(self, error: ServingError) -> None:
        """Whoever reads a live choice meets `error`, and cancels it then."""
        for inbox in self._mail.live.values():
            inbox.fail(error)

    async def status(self) -> WorkerStatus:
        """Load and pools of the worker now."""
        return await self._client.status(self._config.call_timeout_s)

    async def run(self) -> None:
        """Keeps the session up; returns only when cancelled."""
        wait_s = self._config.reconnect_wait_s
        try:
            while True:
                try:
                    await self._serve_session()
                except ServingError as error:
                    if self.state is LinkState.READY:
                        wait_s = self._config.reconnect_wait_s
                        log.warning("lost the session with worker %s: %s", self.address, error.message)
                    self._break(error)
                if self.state is LinkState.BROKEN and await nobody_listens(self.address, self._config.heartbeat_s):
                    # It can hold nothing any more, so there is nothing to wait for.
                    self._lose(f"nobody listens at the address of worker {self.address} any more")
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, self._config.reconnect_wait_s_max)
        finally:
            await self._close()

    async def _close(self) -> None:
        self.state = LinkState.CONNECTING
        self._lose("the router is shutting down")
        await self._client.close()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _serve_session(self) -> None:
        description = await self._client.describe(self._config.call_timeout_s)
        if description.protocol_version != PROTOCOL_VERSION:
            raise FingerprintMismatch(
                f"worker {self.address} speaks protocol {description.protocol_version}, this router {PROTOCOL_VERSION}"
            )
        if self.description is not None and description.worker_id != self.description.worker_id:
            self._lose(f"worker {self.address} was restarted")
            self.draining = self.ending = False
            self.breaker.succeed()
        session = self._client.session()
        try:
            await self._attach(session, description)
            await self._exchange(session)
        finally:
            self._session = None
            session.cancel()

    async def _attach(self, session: SessionCall, description: WorkerDescription) -> None:
        self._epoch += 1
        attach = Attach(self._router_id, self._mail.resume())
        # The attachment says all that was meant for the broken stream, and nothing that comes up from here on.
        self._outgoing = asyncio.Queue(_OUTGOING_MAX)
        self._session = session
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                await session.write(attach)
                attached = await session.read()
        except TimeoutError as error:
            raise WorkerUnavailable(f"worker {self.address} did not answer the attachment") from error
        if not isinstance(attached, Attached) or attached.worker_id != description.worker_id:
            raise WorkerUnavailable(f"worker {self.address} answered the attachment with {attached}")
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        for handle in attached.unknown:
            self._mail.lose(handle, WorkerLost(f"worker {self.address} does not hold the request any more"))
        self._heard_at = asyncio.get_running_loop().time()
        self.description = description
        self.state = LinkState.READY
        log.info("worker %s is ready (%s)", self.address, description.worker_id)
        self._changed()

    async def _exchange(self, session: SessionCall) -> None:
        """Reads until the stream ends, which it reports by an error; writes and watches beside it."""
        beside = [asyncio.create_task(self._write(session)), asyncio.create_task(self._watch(session))]
        loop = asyncio.get_running_loop()
        try:
            while True:
                message = await session.read()
                self._heard_at = loop.time()
                if isinstance(message, StepNews):
                    self._mail.deliver(message)
                elif isinstance(message, Heartbeat):
                    self._note_beat(message)
                else:
                    raise WorkerUnavailable(f"worker {self.address} sent {message} in the middle of a session")
        finally:
            for task in beside:
                task.cancel()
            for outcome in await asyncio.gather(*beside, return_exceptions=True):
                # The stream's own end shows on both sides; anything else is our mistake and must be seen.
                if isinstance(outcome, Exception) and not isinstance(outcome, ServingError):
                    raise outcome

    def _note_beat(self, beat: Heartbeat) -> None:
        """No process takes back that it drains, or is ending."""
        if beat.draining and not self.draining:
            self.draining = True
            log.info("worker %s drains", self.address)
            self._changed()
        if beat.ending and not self.ending:
            self.ending = True
            log.info("worker %s is ending", self.address)
            self._changed()

    async def _write(self, session: SessionCall) -> None:
        while True:
            await session.write(await self._outgoing.get())

    async def _watch(self, session: SessionCall) -> None:
        """Sends heartbeats, and ends a session whose worker has been silent for too long."""
        loop = asyncio.get_running_loop()
        sequence = 0
        while True:
            slept_at = loop.time()
            await asyncio.sleep(self._config.heartbeat_s)
            sequence += 1
            self._send(Heartbeat(sequence, elsewhere=self.draining and self._elsewhere(self)))
            # A router that was itself starved of time has not looked, and may not judge.
            starved = loop.time() - slept_at > 2 * self._config.heartbeat_s
            if not starved and loop.time() - self._heard_at > self._config.heartbeat_timeout_s:
                log.warning("worker %s is silent", self.address)
                session.cancel()
                return

    def _send(self, message: RouterMessage) -> None:
        """Queues a message; without a session there is nobody to tell, and the next attachment tells it all."""
        if self._session is None:
            return
        try:
            self._outgoing.put_nowait(message)
        except asyncio.QueueFull:
            # The worker has taken nothing for thousands of messages: the stream is as good as broken.
            self._session.cancel()

    def _break(self, error: ServingError) -> None:
        if self.state is not LinkState.READY:
            return
        self.state = LinkState.BROKEN
        reason = f"worker {self.address} did not come back: {error.message}"
        loop = asyncio.get_running_loop()
        self._grace = loop.call_later(self._config.reattach_grace_s, self._lose, reason)
        self._changed()

    def _lose(self, reason: str) -> None:
        """Gives up every live choice, and those that are being accepted."""
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._epoch += 1
        if self.state is LinkState.BROKEN:
            self.state = LinkState.CONNECTING
        self._mail.lose_all(WorkerLost(reason))
        for waiting in self._calls.values():
            _wake(waiting)


def _wake(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)
