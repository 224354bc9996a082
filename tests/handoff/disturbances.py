"""What a bad wire does to the messages of a handoff call; each says what it does to one direction of one call."""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable

from segue.v1 import transfer_pb2 as pb
from tests.support.wire_proxy import Disturbance, Messages

RECEIVER = ("start", "grant", "renewed", "withdraw", "heartbeat")
SENDER = ("ask", "progress", "blocks", "finished", "settled", "heartbeat")


Kinds = tuple[str, ...]


class Damage:
    """Changes the first message of a kind, and says whether one came."""

    def __init__(self, kind: str, kinds: Kinds, change: Callable[[bytes], bytes]) -> None:
        self._came = asyncio.Event()
        self._kind, self._kinds, self._change = kind, kinds, change

    @property
    def done(self) -> bool:
        return self._came.is_set()

    async def until_done(self) -> None:
        """What is said last may come after a request's end."""
        async with asyncio.timeout(10):
            await self._came.wait()

    async def __call__(self, messages: Messages) -> Messages:
        async for message in messages:
            if not self.done and _parsed(message, self._kinds).WhichOneof("kind") == self._kind:
                self._came.set()
                yield self._change(message)
            else:
                yield message


def shorn(message: bytes, kinds: Kinds, fields: int) -> bytes:
    """What is left of a message that keeps so many of its fields, in the order in which they are on the wire."""
    parsed = _parsed(message, kinds)
    body = getattr(parsed, str(parsed.WhichOneof("kind")))
    for descriptor, _ in body.ListFields()[fields:]:
        body.ClearField(descriptor.name)
    return parsed.SerializeToString()


async def repeated(messages: Messages) -> Messages:
    """Every message comes twice, and once more after the next."""
    before = None
    async for message in messages:
        yield message
        yield message
        if before is not None:
            yield before
        before = message


async def late(messages: Messages) -> Messages:
    """Every message but the first comes a moment late; the order stays."""
    yield await anext(messages)
    async for message in messages:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.03)
        yield message


def swapped(period: int) -> Disturbance:
    """Of each `period` messages after the first, the first is overtaken by the others, or by none in a while."""

    async def disturb(messages: Messages) -> Messages:
        yield await anext(messages)
        coming = asyncio.ensure_future(_next(messages))
        held: deque[tuple[int, bytes]] = deque()
        for number in itertools.count():
            while not coming.done():
                await asyncio.wait([coming], timeout=0.1)
                if not coming.done() and held:
                    yield held.popleft()[1]
            message = coming.result()
            if message is None:
                break
            coming = asyncio.ensure_future(_next(messages))
            if number % period == 0:
                held.append((number, message))
            else:
                yield message
            while held and number - held[0][0] >= period - 1:
                yield held.popleft()[1]
        for _, message in held:
            yield message

    return disturb


async def _next(messages: AsyncIterator[bytes]) -> bytes | None:
    return await anext(messages, None)


def _parsed(message: bytes, kinds: Kinds) -> pb.ReceiverMessage | pb.SenderMessage:
    return pb.ReceiverMessage.FromString(message) if kinds is RECEIVER else pb.SenderMessage.FromString(message)


class Recording:
    """Keeps what passes in one call, and plays it again in others, behind each of the first messages.

    What opens a call names no promise, and is not kept.
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._kept: list[bytes] = []

    async def keep(self, messages: Messages) -> Messages:
        async for message in messages:
            if _parsed(message, self._kinds).WhichOneof("kind") not in ("start", "ask"):
                self._kept.append(message)
            yield message

    async def play(self, messages: Messages) -> Messages:
        places = 0
        async for message in messages:
            yield message
            places += 1
            for old in self._kept if places <= 4 else ():
                yield old
