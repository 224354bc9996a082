"""What one handoff call still has to send: messages, and blocks that are cut into messages when their turn comes."""

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import Future

from kv_transfer.block_messages import cut_messages
from kv_transfer.blocks import Blocks
from segue.errors import PeerLost
from segue.handoff import FromSender, Ticket, TransportName
from segue.state.regions import Regions


class Outbox:
    """Any thread puts in, one coroutine sends. Order is kept, so `Settled` never overtakes the bytes before it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, regions: Regions) -> None:
        self._loop = loop
        self._regions = regions
        self._queue: asyncio.Queue[FromSender | _Write | None] = asyncio.Queue()
        self._closed = False

    def put(self, message: FromSender) -> None:
        """Queues a message; a no-op after the call has ended."""
        self._loop.call_soon_threadsafe(self._enqueue, message)

    def put_blocks(self, ticket: Ticket, blocks: Blocks, what: str) -> "Future[None]":
        """Queues blocks. The future ends when they are on the stream, or with PeerLost when the call ended before."""
        write = _Write(ticket, blocks, what)
        self._loop.call_soon_threadsafe(self._enqueue, write)
        return write.done

    def finish(self) -> None:
        """Ends `messages` once what was put before is sent."""
        self._loop.call_soon_threadsafe(self._enqueue, None)

    async def messages(self) -> AsyncGenerator[FromSender, None]:
        """Everything in order. The consumer takes the next one when the stream has room."""
        current: _Write | None = None
        try:
            while (entry := await self._queue.get()) is not None:
                if not isinstance(entry, _Write):
                    yield entry
                    continue
                current = entry
                for message in cut_messages(self._regions, entry.ticket, entry.blocks):
                    yield message
                entry.done.set_result(None)
                current = None
        finally:
            self._closed = True
            if current is not None:
                current.lose()
            while not self._queue.empty():
                if isinstance(entry := self._queue.get_nowait(), _Write):
                    entry.lose()

    def _enqueue(self, entry: "FromSender | _Write | None") -> None:
        if not self._closed:
            self._queue.put_nowait(entry)
        elif isinstance(entry, _Write):
            entry.lose()


class GrpcLink:
    """The peer's arena, reached through the stream of one handoff call."""

    transport = TransportName.GRPC

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def write(self, ticket: Ticket, blocks: Blocks, what: str) -> "Future[None]":
        return self._outbox.put_blocks(ticket, blocks, what)


class _Write:
    def __init__(self, ticket: Ticket, blocks: Blocks, what: str) -> None:
        self.ticket, self.blocks, self.what = ticket, blocks, what
        self.done: Future[None] = Future()
        self.done.set_running_or_notify_cancel()

    def lose(self) -> None:
        self.done.set_exception(PeerLost(f"{self.ticket}: {self.what}: the call to the receiver has ended"))
