"""Too many, too slow, or gone: what a client is told, and what is left behind (nothing)."""

import asyncio
from dataclasses import replace

import httpx
import pytest
from starlette.types import Message

from router.generate import completion_endpoint
from tests.router.reading import reading
from tests.router.served import QUICK, answer, served, turn
from tests.support.fake_worker import FakeWorker

ASK = {"prompt": "x", "max_tokens": 64}


async def test_a_full_queue_is_a_429_and_a_long_wait_a_408() -> None:
    config = replace(QUICK, inflight_max=2, choices_max=2, queue_max=1, queue_timeout_s=0.3)
    async with FakeWorker(answer, paused=True) as worker, served(worker, config=config) as router:
        admission = router.shell.admission
        post = router.http.post
        first = asyncio.create_task(post("/v1/completions", json={**ASK, "n": 2}))
        await worker.until(lambda: len(worker.live) == 2)
        waiting = asyncio.create_task(post("/v1/completions", json={**ASK, "stream": True}))
        while admission.waiting == 0:
            await turn()
        refused = await post("/v1/completions", json=ASK)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"
        late = await waiting
        assert late.status_code == 408
        assert late.json()["error"]["code"] == "queue_timeout"
        worker.step(64)
        assert (await first).status_code == 200
        await router.until_idle()


async def test_a_deadline_before_the_first_token_is_a_504_and_after_it_an_error_event() -> None:
    config = replace(QUICK, request_timeout_s=0.5)
    async with FakeWorker(answer, paused=True) as worker, served(worker, config=config) as router:
        got = await router.http.post("/v1/completions", json={**ASK, "stream": True})
        assert got.status_code == 504
        assert got.json()["error"]["code"] == "deadline_exceeded"
        await worker.until(lambda: len(worker.cancels) == 1)
        async with reading(router.http) as stream:
            await worker.until(lambda: len(worker.live) == 1)
            assert 0 < (worker.specs[-1].deadline_s or 0) <= 0.5
            worker.step()
            await stream.until_over()
            assert stream.status == 200
            assert stream.error is not None
            assert stream.error["code"] == "deadline_exceeded"
        await worker.until(lambda: not worker.live)
        await router.until_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 2])
async def test_a_client_that_leaves_is_cancelled_at_the_worker(stream: bool, tokens: int) -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = asyncio.create_task(router.http.post("/v1/completions", json={**ASK, "n": 2, "stream": stream}))
        await worker.until(lambda: len(worker.live) == 2)
        worker.step(tokens)
        handles = set(worker.live)
        asking.cancel()
        await worker.until(lambda: {cancel.handle for cancel in worker.cancels} == handles)
        assert not worker.live
        await router.until_idle()


async def test_a_client_that_leaves_the_queue_takes_its_place_with_it() -> None:
    config = replace(QUICK, inflight_max=1, choices_max=1, queue_timeout_s=20.0)
    async with FakeWorker(answer, paused=True) as worker, served(worker, config=config) as router:
        admission = router.shell.admission
        first = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        await worker.until(lambda: len(worker.live) == 1)
        second = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        while admission.waiting == 0:
            await turn()
        second.cancel()
        while admission.waiting == 1:
            await turn()
        worker.step(64)
        assert (await first).status_code == 200
        assert len(worker.specs) == 1
        await router.until_idle()


async def test_a_client_that_leaves_while_the_worker_decides_leaves_nothing_there() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        worker.deciding.clear()
        asking = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        await worker.until(lambda: len(worker.specs) == 1)
        asking.cancel()
        await router.until_left()
        worker.deciding.set()
        await worker.until(lambda: len(worker.cancels) == 1)
        assert not worker.live
        await router.until_idle()


async def test_a_slow_reader_gets_everything_and_holds_up_nobody() -> None:
    tokens = 1500
    async with FakeWorker(lambda spec: [17] * tokens, paused=True) as worker, served(worker) as router:
        slow = asyncio.create_task(raw_reader(router.url, tokens))
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(tokens)
        quick = asyncio.create_task(router.http.post("/v1/completions", json={**ASK, "max_tokens": 3}))
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(3)
        assert (await quick).status_code == 200
        text = await slow
        assert text.count(b"data: ") > 1
        assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await router.until_idle()


async def raw_reader(url: str, tokens: int) -> bytes:
    """Asks for a stream, and reads nothing of it until the other side has stopped writing."""
    target = httpx.URL(url)
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=1024)
    body = b'{"prompt":"x","stream":true,"max_tokens":%d}' % tokens
    writer.write(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    )
    writer.write(body)
    got = b""
    while part := await reader.read(1 << 16):
        got += part
    writer.close()
    return got


async def test_many_requests_at_once_all_get_their_answer() -> None:
    async with FakeWorker(answer) as a, FakeWorker(answer, worker_id="b") as b, served(a, b) as router:
        many = [router.http.post("/v1/completions", json={**ASK, "stream": number % 2 == 0}) for number in range(64)]
        for got in await asyncio.gather(*many):
            assert got.status_code == 200
        assert min(len(a.specs), len(b.specs)) > 16
        await router.until_idle()


async def test_a_client_that_takes_no_answer_keeps_no_room_from_others() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        body = [{"type": "http.request", "body": b'{"prompt":"x","n":2}'}]
        sending, never = asyncio.Event(), asyncio.Event()

        async def receive() -> Message:
            if not body:
                await never.wait()
            return body.pop()

        async def send(message: Message) -> None:
            sending.set()
            await never.wait()

        scope = {"type": "http", "headers": [], "request_id": "r"}
        answering = asyncio.create_task(completion_endpoint(router.shell)(scope, receive, send))
        await asyncio.wait_for(sending.wait(), 20.0)
        assert len(router.shell.live) == 1
        assert router.shell.admission.inflight == 0
        answering.cancel()
        await router.until_idle()


async def test_a_body_that_does_not_come_is_a_408() -> None:
    config = replace(QUICK, request_timeout_s=0.2)
    async with FakeWorker(answer) as worker, served(worker, config=config) as router:
        target = httpx.URL(router.url)
        for path in (b"/v1/completions", b"/tokenize"):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            writer.write(b"POST %s HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{" % path)
            got = await asyncio.wait_for(reader.read(), 10.0)
            assert got.startswith(b"HTTP/1.1 408 ")
            assert b'"code":"body_timeout"' in got
            writer.close()
        assert not worker.specs
