"""A router's own beginning and end."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from router.server import Server
from segue.errors import ConfigError
from tests.router.reading import reading
from tests.router.served import ANSWER, QUICK, answer, served, tokenizer
from tests.support.fake_worker import FakeWorker

ASK = {"prompt": "x", "max_tokens": 64}


async def test_a_router_that_stops_finishes_what_runs_and_takes_nothing_new() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        async with reading(router.http) as stream:
            await worker.until(lambda: len(worker.live) == 1)
            worker.step(2)
            await stream.until_text(1)
            router.server.stop()
            for path in ("/readiness", "/v1/completions"):
                got = await (router.http.get(path) if path == "/readiness" else router.http.post(path, json=ASK))
                assert got.status_code == 503
            assert (await router.http.get("/liveness")).status_code == 200
            worker.step(64)
            await stream.until_over()
            assert stream.text == ANSWER
            assert stream.done
        await router.until_stopped()
        with pytest.raises(httpx.ConnectError):
            async with httpx.AsyncClient() as late:
                await late.get(f"{router.url}/liveness")


async def test_the_drain_has_a_budget() -> None:
    config = replace(QUICK, drain_s=0.1)
    async with FakeWorker(answer, paused=True) as worker, served(worker, config=config) as router:
        asking = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        await worker.until(lambda: len(worker.live) == 1)
        router.server.stop()
        await router.until_stopped()
        await asyncio.gather(asking, return_exceptions=True)
        await worker.until(lambda: not worker.live)


async def test_a_router_that_gives_way_frees_its_port_and_finishes_what_runs() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router, reading(router.http) as stream:
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(2)
        await stream.until_text(1)
        router.server.give_way()
        config = replace(QUICK, port=router.server.address[1])
        async with FakeWorker(answer) as other, served(other, config=config) as successor:
            assert successor.url == router.url
            assert (await successor.http.post("/v1/completions", json=ASK)).status_code == 200
            assert len(other.specs) == 1
        worker.step(64)
        await stream.until_over()
        assert stream.text == ANSWER
        assert stream.done
        await router.until_stopped()


async def test_a_taken_port_is_named() -> None:
    async with served(ready=0) as router:
        port = router.server.address[1]
        with pytest.raises(ConfigError, match=str(port)):
            Server(replace(QUICK, port=port), tokenizer(), [])
