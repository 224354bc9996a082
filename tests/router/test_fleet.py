"""Workers come and go while requests run: new ones get work at once, and what a leaving one has it finishes."""

import asyncio
from dataclasses import replace

from tests.router.reading import reading
from tests.router.served import ANSWER, QUICK, WAIT_S, Served, answer, served
from tests.support.fake_worker import FakeWorker

ASK = {"prompt": "x", "max_tokens": 64}


async def test_a_worker_that_comes_later_is_served_from() -> None:
    async with served(ready=0) as router, FakeWorker(answer) as worker:
        assert (await router.http.get("/readiness")).status_code == 503
        router.shell.fleet.set_addresses([worker.address])
        await router.until_ready()
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 200
        assert len(worker.specs) == 1


async def test_a_request_that_waits_for_a_worker_gets_the_one_that_comes() -> None:
    patient = replace(QUICK, placement_wait_s=WAIT_S)
    async with FakeWorker(answer) as first, FakeWorker(answer) as second, served(first, config=patient) as router:
        await router.until_ready()
        await first.stop()
        await _until_lost(router)
        asking = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        await router.until_asked()
        router.shell.fleet.set_addresses([first.address, second.address])
        assert (await asking).status_code == 200
        assert len(second.specs) == 1


async def test_a_worker_that_leaves_finishes_its_stream_and_gets_nothing_new() -> None:
    async with (
        FakeWorker(answer, paused=True) as leaving,
        FakeWorker(answer) as staying,
        served(leaving) as router,
        reading(router.http) as stream,
    ):
        await leaving.until(lambda: len(leaving.live) == 1)
        leaving.step(2)
        await stream.until_text(1)
        fleet = router.shell.fleet
        fleet.set_addresses([staying.address])
        (listed, _) = (await router.http.get("/workers")).json()["workers"]
        assert (listed["address"], listed["state"]) == (leaving.address, "leaving")
        await router.until_ready()
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 200
        assert (len(leaving.specs), len(staying.specs)) == (1, 1)
        leaving.step(64)
        await stream.until_over()
        assert stream.text == ANSWER
        await router.until_left()
        fleet.set_addresses([staying.address])
        assert [link.address for link in fleet.links] == [staying.address]


async def test_a_worker_that_is_named_again_before_it_left_stays() -> None:
    async with (
        FakeWorker(answer, paused=True) as worker,
        served(worker) as router,
        reading(router.http) as stream,
    ):
        await worker.until(lambda: len(worker.live) == 1)
        fleet = router.shell.fleet
        (before,) = fleet.links
        fleet.set_addresses([])
        assert not fleet.ready
        fleet.set_addresses([worker.address])
        assert fleet.ready == [before]
        worker.step(64)
        await stream.until_over()
        assert stream.text == ANSWER


async def test_a_worker_may_come_back_under_its_address_after_it_was_let_go_of() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        fleet = router.shell.fleet
        fleet.set_addresses([])
        assert not fleet.links
        fleet.set_addresses([worker.address, worker.address])
        await router.until_ready()
        assert len(fleet.links) == 1
        assert (await router.http.post("/v1/completions", json=ASK)).status_code == 200


async def _until_lost(router: Served) -> None:
    async with asyncio.timeout(WAIT_S):
        while router.shell.fleet.ready:
            await router.shell.fleet.wait_change(WAIT_S)
