"""One attachment of a session to an open call: pumps messages both ways until either side breaks; decides nothing."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from decode_service.session import Session
from segue.errors import DeadlineExceeded, FingerprintMismatch, InvalidRequest, ServingError
from segue.ids import WorkerId
from segue.wire import PROTOCOL_VERSION, Attach, Attached, Cancel, Finish, Heartbeat, RouterMessage, WorkerMessage


class Stream:
    """Lives as long as one Session call, whose handler iterates `messages`."""

    def __init__(
        self,
        session: Session,
        incoming: AsyncIterator[RouterMessage],
        control: Callable[[Cancel | Finish | Heartbeat], None],
        closed: Callable[["Stream"], None],
        *,
        heartbeat_s: float,
        silence_s: float,
    ) -> None:
        self._session = session
        self._incoming = incoming
        self._control = control
        self._on_close = closed
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._beat_due = False
        self._draining = self._ending = self._finishing = False
        self._state_untold = False
        self._closed: ServingError | None = None

    async def messages(self, hello: Attached) -> AsyncGenerator[WorkerMessage, None]:
        """What the router is told, in order. Ends when the router ends or breaks off, and raises what it did wrong."""
        sequence = 0
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._session.news.set())
        beat = asyncio.create_task(self._beat())
        try:
            yield hello
            while True:
                if not self._finishing:
                    await self._session.news.wait()
                if self._closed is not None:
                    raise self._closed
                if reader.done():
                    reader.result()
                    return
                if self._state_untold:
                    self._state_untold = False
                    sequence += 1
                    yield self._heartbeat(sequence)
                news = self._session.take()
                if news is not None:
                    yield news
                elif self._finishing:
                    return
                elif self._beat_due:
                    sequence += 1
                    yield self._heartbeat(sequence)
                self._beat_due = False
        finally:
            reader.cancel()
            beat.cancel()
            await asyncio.gather(reader, beat, return_exceptions=True)

    def drain(self) -> None:
        """The router hears that the worker takes nothing new."""
        self._draining = self._state_untold = True
        self._session.news.set()

    def end_soon(self) -> None:
        """The router hears that what still runs is about to be lost."""
        self._ending = True
        self.drain()

    def finish(self) -> None:
        """Ends the call once everything is said."""
        self._finishing = True
        self._session.news.set()

    def close(self, reason: ServingError) -> None:
        """Takes no more news, and ends the call with `reason`.

        Where the call hangs in a write that the peer does not read, it ends when the peer reads or its connection dies.
        """
        self._closed = reason
        self._session.news.set()
        self._on_close(self)

    def _heartbeat(self, sequence: int) -> Heartbeat:
        return Heartbeat(sequence, draining=self._draining, ending=self._ending)

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._silence_s):
                    message = await anext(self._incoming, None)
            except TimeoutError:
                name = self._session.router_id
                self.close(DeadlineExceeded(f"router {name} said nothing for {self._silence_s} s"))
                return
            match message:
                case None:
                    return
                case Cancel() | Finish() | Heartbeat():
                    self._control(message)
                case Attach():
                    raise InvalidRequest("a session is attached once per stream")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._beat_due = True
            self._session.news.set()


async def first_attach(incoming: AsyncIterator[RouterMessage], worker_id: WorkerId, silence_s: float) -> Attach:
    """How a router begins a session. Raises InvalidRequest, FingerprintMismatch or DeadlineExceeded."""
    try:
        async with asyncio.timeout(silence_s):
            first = await anext(incoming, None)
    except TimeoutError:
        raise DeadlineExceeded(f"no Attach came within {silence_s} s") from None
    if not isinstance(first, Attach):
        raise InvalidRequest("a session begins with Attach")
    if first.protocol_version != PROTOCOL_VERSION:
        raise FingerprintMismatch(
            f"router {first.router_id} speaks protocol {first.protocol_version}, worker {worker_id} speaks "
            f"{PROTOCOL_VERSION}"
        )
    return first
