"""All calls of decode workers that a worker answers as a sender: one Serving each, until nothing of it is owed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import aclosing
from typing import Any

from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.exchange import Exchange
from kv_transfer.hosting.serving import Serving
from kv_transfer.hosting.tasks import OwnedTasks
from kv_transfer.outbox import Outbox
from kv_transfer.sender_words import SenderCommand, SenderEvent
from segue.errors import DeadlineExceeded, InvalidRequest, PeerLost, ServingError, TransferFailed
from segue.handoff import FromReceiver, FromSender, Start
from segue.ids import Handle


class Servings:
    """Owned by the event loop.

    `named` says what the request of a call is called here, and raises what refuses it. `offer` has the engine thread
    take it; the future ends with what refused it. `put` takes what is said of it later. `broken` is told what ended a
    task by our own mistake.
    """

    def __init__(
        self,
        exchange: Exchange,
        config: TransferConfig,
        named: Callable[[Start], tuple[Handle, int]],
        offer: "Callable[[Start, Handle], Future[None]]",
        put: Callable[[SenderCommand], None],
        broken: Callable[[BaseException], None],
    ) -> None:
        self._exchange = exchange
        self._config = config
        self._named = named
        self._offer = offer
        self._put = put
        self._servings: dict[Handle, Serving] = {}
        self._tasks = OwnedTasks(broken)
        self._idle = asyncio.Event()

    @property
    def live_count(self) -> int:
        """Calls whose state is still read, or may be."""
        return len(self._servings)

    def deliver(self, event: SenderEvent) -> None:
        """The engine thread's word on one request; nobody wants to know it of one that no call is for."""
        if (serving := self._servings.get(event.handle)) is not None:
            serving.on_event(event)

    async def serve(self, incoming: AsyncIterator[FromReceiver]) -> AsyncGenerator[FromSender, None]:
        """One call of a decode worker, from its Start to its end. Raises what refused or broke it."""
        start = await self._hello(incoming)
        outbox = Outbox(asyncio.get_running_loop(), self._exchange.storage.regions)
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

    async def until_idle(self) -> None:
        """Returns when no call is left, or after `wake`."""
        if self._servings:
            self._idle.clear()
            await self._idle.wait()

    def wake(self) -> None:
        """Whoever waits looks again."""
        self._idle.set()

    async def close(self) -> None:
        """Nothing that is still read will be given back any more."""
        await self._tasks.close()

    async def _hello(self, incoming: AsyncIterator[FromReceiver]) -> Start:
        try:
            async with asyncio.timeout(self._config.silence_s):
                first = await anext(incoming, None)
        except TimeoutError:
            raise DeadlineExceeded(f"no Start came within {self._config.silence_s} s") from None
        if not isinstance(first, Start):
            raise InvalidRequest("a handoff begins with Start")
        return first

    async def _accept(self, start: Start, outbox: Outbox) -> Serving:
        """Has the engine thread take the request. Raises the ServingError that refused it."""
        handover = self._exchange.handover(start, outbox)
        handle, attempt = self._named(start)
        if handle in self._servings:
            raise TransferFailed(f"request {start.request.request_id}: its state is being handed over already")
        serving = Serving(
            handle,
            attempt,
            handover,
            outbox,
            self._put,
            heartbeat_s=self._config.heartbeat_s,
            silence_s=self._config.silence_s,
        )
        # Known before the engine takes it: it may be its turn at once.
        self._servings[handle] = serving
        try:
            await asyncio.wrap_future(self._offer(start, handle))
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


def _end_sending(listening: "asyncio.Task[None]", outbox: Outbox, answering: "asyncio.Task[Any] | None") -> None:
    """The receiver says no more, so what is still to be sent is the last."""
    outbox.finish()
    if not listening.cancelled() and isinstance(listening.exception(), PeerLost) and answering is not None:
        # It may have stopped reading as well, and then the call hangs in a write that never ends.
        answering.cancel()
