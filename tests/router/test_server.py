"""A router's own beginning and end."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from router.server import Server
from segue.errors import ConfigError
from tests.router.reading import reading
from tests.router.served import ANSWER, QUICK, answer, served, tokenizer, turn
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


@pytest.mark.parametrize("hurried", [False, True])
async def test_what_outlasts_the_drain_is_told(hurried: bool) -> None:
    """One that streams, one that collects, one that waits for room, and one whose worker is gone."""
    config = replace(QUICK, drain_s=60.0 if hurried else 0.1, inflight_max=3, choices_max=3, queue_timeout_s=60.0)
    async with (
        FakeWorker(answer, paused=True) as worker,
        FakeWorker(answer, paused=True) as lost,
        served(worker, lost, config=config) as router,
        reading(router.http) as stream,
    ):
        while not (worker.live or lost.live):
            await turn()
        holder = worker if worker.live else lost
        holder.step(2)
        await stream.until_text(1)
        others = [asyncio.create_task(router.http.post("/v1/completions", json=ASK)) for _ in range(3)]
        while len(worker.live) + len(lost.live) < 3 or not router.server.shell.admission.waiting:
            await turn()
        await (lost if holder is worker else worker).stop()
        router.server.stop()
        if hurried:
            router.server.stop()
        await stream.until_over()
        assert not stream.done
        assert stream.error is not None
        assert stream.error["code"] == "worker_unavailable"
        for answered in await asyncio.gather(*others):
            assert answered.status_code == 503
            assert "shutting down" in answered.json()["error"]["message"]
        await router.until_stopped()
        await holder.until(lambda: not holder.live)


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
