"""How long a connection may take to come up, and how soon a server that comes back is found."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

import grpc
import pytest

from segue.wire.channel import PLAIN, bind, open_channel


class Slow:
    """Stands before a server while entered, and passes each connection on only after a while."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port = port
        self._delay_s = delay_s
        self._passing: set[asyncio.Task[None]] = set()
        self.count = 0
        self.address = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._passing:
            task.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self._passing.add(asyncio.create_task(self._pass_on(reader, writer)))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with closing(writer):
            await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=self._delay_s)
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
            async with closing(back):
                await asyncio.gather(_pass(reader, back), _pass(there, writer))


@asynccontextmanager
async def closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


async def server(port: int = 0) -> tuple[grpc.aio.Server, int]:
    made = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    bound = bind(made, f"127.0.0.1:{port}", PLAIN)
    await made.start()
    return made, bound


async def answered(channel: grpc.aio.Channel, timeout_s: float) -> grpc.StatusCode:
    """The status of a call that no server knows: UNIMPLEMENTED comes from one that was reached."""
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/nobody/knows")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(b"", timeout=timeout_s, wait_for_ready=True)
    return failed.value.code()


async def test_a_connection_may_take_longer_than_the_wait_between_two_attempts() -> None:
    made, port = await server()
    async with Slow(port, delay_s=0.7) as slow, open_channel(slow.address, PLAIN) as channel:
        assert await answered(channel, 20) is grpc.StatusCode.UNIMPLEMENTED
        assert slow.count == 1, "an attempt was given up before its time"
    await made.stop(None)


async def test_a_server_that_comes_back_is_found_in_less_than_the_time_of_an_attempt() -> None:
    made, port = await server()
    async with open_channel(f"127.0.0.1:{port}", PLAIN) as channel:
        assert await answered(channel, 20) is grpc.StatusCode.UNIMPLEMENTED
        await made.stop(None)
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/nobody/knows")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call(b"", timeout=20)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        made, _ = await server(port)
        began_at = time.monotonic()
        assert await answered(channel, 20) is grpc.StatusCode.UNIMPLEMENTED
        assert time.monotonic() - began_at < 3
    await made.stop(None)
