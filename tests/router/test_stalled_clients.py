"""Clients on real sockets that stop reading: they are let go of, and their requests with them; slow ones are not."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx
import orjson
import pytest

from router.config import RouterConfig
from segue.errors import ConfigError
from tests.router.reading import reading
from tests.router.served import QUICK, WAIT_S, Served, served
from tests.support.fake_worker import FakeWorker

STALL_S = 0.4
CONFIG = replace(QUICK, client_stall_s=STALL_S)
TOKENS = 2500
# Twenty alternatives a token, four times: megabytes, which no socket's buffers hold.
BODY = {"prompt": "x", "max_tokens": TOKENS, "logprobs": 20, "n": 4}


@asynccontextmanager
async def connected(router: Served, **body: object) -> AsyncIterator[socket.socket]:
    """A client that has asked for an answer, and has room for little of it."""
    target = httpx.URL(router.url)
    loop = asyncio.get_running_loop()
    raw = orjson.dumps({**BODY, **body})
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 15)
        client.setblocking(False)
        await loop.sock_connect(client, (target.host, target.port))
        head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
        await loop.sock_sendall(client, head % len(raw) + raw)
        yield client


async def passed(seconds: float) -> None:
    """How slow a client is; nothing is waited for."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=seconds)


def many_tokens() -> FakeWorker:
    return FakeWorker(lambda spec: [17] * TOKENS, paused=True, max_len=2 * TOKENS)


async def test_a_stream_that_nobody_reads_is_cancelled() -> None:
    async with (
        many_tokens() as worker,
        served(worker, config=CONFIG) as router,
        connected(router, stream=True) as client,
    ):
        await worker.until(lambda: len(worker.live) == 4)
        handles = set(worker.live)
        worker.step(TOKENS - 1)
        await router.until_idle()
        await worker.until(lambda: {cancel.handle for cancel in worker.cancels} == handles)
        assert not worker.live
        await until_closed(client)


async def until_closed(client: socket.socket) -> None:
    """Reads what was on its way when the other side gave up, and no end of an answer."""
    loop = asyncio.get_running_loop()
    got = b""
    async with asyncio.timeout(WAIT_S):
        while part := await loop.sock_recv(client, 1 << 20):
            got += part
    assert got.startswith(b"HTTP/1.1 200 ")
    assert not got.endswith(b"0\r\n\r\n")


@pytest.mark.long
async def test_a_client_that_reads_little_but_goes_on_is_served_to_the_end() -> None:
    loop = asyncio.get_running_loop()
    async with (
        many_tokens() as worker,
        served(worker, config=CONFIG) as router,
        connected(router, stream=True) as client,
    ):
        await worker.until(lambda: len(worker.live) == 4)
        worker.step(TOKENS)
        got = b""
        began_at = loop.time()
        while loop.time() < began_at + 4 * STALL_S:
            got = (got + await loop.sock_recv(client, 1 << 15))[-100:]
            await passed(STALL_S / 8)
        assert router.shell.live, "the answer is not so short that it has been taken by now"
        while part := await loop.sock_recv(client, 1 << 20):
            got = (got + part)[-100:]
        assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await router.until_idle()


async def test_a_client_that_waits_for_output_is_not_stalled() -> None:
    config = replace(QUICK, client_stall_s=0.1)
    async with many_tokens() as worker, served(worker, config=config) as router, reading(router.http) as stream:
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(2)
        await passed(0.5)
        worker.step(62)
        await stream.until_over()
        assert stream.done


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_a_client_gets_some_time(seconds: float) -> None:
    with pytest.raises(ConfigError, match="client_stall_s"):
        RouterConfig(client_stall_s=seconds)
