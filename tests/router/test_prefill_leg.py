"""Requests to decode workers go through prefill workers: one is named in each, another after a failure, never none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from router.config import RouterConfig
from segue.batch.request import FinishReason
from segue.errors import ContextTooLong, DigestMismatch, PrefillUnavailable, QueueFull, ServingError
from tests.router.reading import Reading, reading
from tests.router.served import ANSWER, QUICK, WAIT_S, Served, answer, served
from tests.support.fake_worker import FakeWorker


@dataclass
class Fleet:
    """A decode worker that says nothing by itself, prefill workers, and a router."""

    decode: FakeWorker
    prefills: list[FakeWorker]
    router: Served

    async def until_known(self, count: int) -> None:
        """Until so many prefill workers are ready."""
        fleet = self.router.shell.fleet
        async with asyncio.timeout(WAIT_S):
            while sum(worker.ready for worker in fleet.prefills.workers) != count:
                await fleet.wait_change(WAIT_S)

    async def next_address(self) -> str:
        """The prefill address of the next request that the decode worker gets."""
        count = len(self.decode.specs)
        await self.decode.until(lambda: len(self.decode.specs) > count and bool(self.decode.live))
        return self.decode.specs[-1].prefill_address

    def fail(self, error: ServingError) -> None:
        """The one live request fails."""
        (handle,) = self.decode.live
        self.decode.end(handle, FinishReason.ERROR, error)

    def state(self, index: int) -> tuple[str, int]:
        """Breaker and load of a prefill worker."""
        worker = self.router.shell.fleet.prefills.workers[index]
        return worker.breaker.state(asyncio.get_running_loop().time()).value, worker.load


@asynccontextmanager
async def fleet(count: int = 2, config: RouterConfig = QUICK) -> AsyncIterator[Fleet]:
    async with FakeWorker(answer, paused=True, role="decode") as decode:
        prefills = [FakeWorker(answer, worker_id=f"p{i}", role="prefill") for i in range(count)]
        for prefill in prefills:
            await prefill.start(0)
        try:
            async with served(decode, prefills=prefills, config=config) as router:
                made = Fleet(decode, prefills, router)
                await made.until_known(count)
                yield made
        finally:
            for prefill in prefills:
                await prefill.stop()


async def complete(made: Fleet, stream: Reading) -> None:
    made.decode.step(64)
    await stream.until_over()
    assert stream.text == ANSWER
    await made.router.until_idle()


async def test_a_request_is_told_where_its_prompt_is_computed() -> None:
    async with fleet(1) as made, reading(made.router.http) as stream:
        assert await made.next_address() == made.prefills[0].address
        assert made.state(0) == ("closed", 1)
        await complete(made, stream)
        assert made.state(0) == ("closed", 0)


async def test_equal_prefill_workers_take_turns() -> None:
    async with fleet(2) as made:
        seen = []
        for _ in range(4):
            async with reading(made.router.http) as stream:
                seen.append(await made.next_address())
                await complete(made, stream)
        assert sorted(seen) == sorted(2 * [prefill.address for prefill in made.prefills])


async def test_after_a_failed_handoff_another_prefill_worker_is_tried() -> None:
    async with fleet(2) as made, reading(made.router.http) as stream:
        first = await made.next_address()
        made.fail(PrefillUnavailable("gone"))
        second = await made.next_address()
        assert {first, second} == {prefill.address for prefill in made.prefills}
        await complete(made, stream)
        assert made.router.shell.fleet.links[0].breaker.state(0).value == "closed"


async def test_state_that_arrived_damaged_is_computed_again() -> None:
    async with fleet(1) as made, reading(made.router.http) as stream:
        address = await made.next_address()
        made.fail(DigestMismatch("full positions [0, 9) arrived damaged"))
        assert await made.next_address() == address
        await complete(made, stream)


async def test_faults_of_a_prefill_worker_trip_its_breaker_and_not_the_decode_worker_s() -> None:
    async with fleet(2, replace(QUICK, breaker_faults=1, breaker_cooldown_s=30.0)) as made:
        async with reading(made.router.http) as stream:
            broken = await made.next_address()
            made.fail(DigestMismatch("damaged"))
            await made.next_address()
            await complete(made, stream)
        for _ in range(3):
            async with reading(made.router.http) as stream:
                assert await made.next_address() != broken
                await complete(made, stream)


async def test_a_full_queue_sends_a_request_to_the_other_prefill_worker_and_no_further() -> None:
    async with fleet(2, replace(QUICK, breaker_faults=1)) as made, reading(made.router.http) as stream:
        first = await made.next_address()
        made.fail(QueueFull("full"))
        assert await made.next_address() != first
        made.fail(QueueFull("full too"))
        await stream.until_over()
        assert stream.status == 429
        assert [made.state(index) for index in range(2)] == [("closed", 0), ("closed", 0)]


async def test_what_the_client_did_wrong_is_told_and_trips_nothing() -> None:
    async with fleet(1, replace(QUICK, breaker_faults=1)) as made, reading(made.router.http) as stream:
        await made.next_address()
        made.fail(ContextTooLong("too long for the prefill worker"))
        await stream.until_over()
        assert stream.status == 400
        assert made.state(0) == ("closed", 0)


async def test_without_a_prefill_worker_nothing_is_served_as_if_there_were_none_to_be() -> None:
    async with fleet(1) as made:
        await made.prefills[0].stop()
        await made.until_known(0)
        reply = await made.router.http.post("/v1/completions", json={"prompt": "x"})
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "worker_unavailable")
        assert (await made.router.http.get("/health")).status_code == 503
        assert made.decode.specs == []


async def test_a_request_waits_for_its_prefill_worker_to_come_back() -> None:
    async with fleet(1) as made, reading(made.router.http) as stream:
        await made.next_address()
        port = made.prefills[0].port
        await made.prefills[0].stop()
        made.fail(PrefillUnavailable("gone"))
        await made.until_known(0)
        made.prefills[0] = FakeWorker(answer, worker_id="again", role="prefill")
        await made.prefills[0].start(port)
        assert await made.next_address() == made.prefills[0].address
        await complete(made, stream)


async def test_a_prefill_worker_of_another_fingerprint_is_not_asked() -> None:
    async with (
        FakeWorker(answer, role="decode") as decode,
        FakeWorker(answer, role="prefill", fingerprint="e" * 16) as other,
        served(decode, prefills=[other]) as router,
    ):
        made = Fleet(decode, [other], router)
        await made.until_known(1)
        reply = await router.http.post("/v1/completions", json={"prompt": "x"})
        assert reply.status_code == 503
        assert decode.specs == []


async def test_a_worker_of_both_roles_needs_no_prefill_worker() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        await router.http.post("/v1/completions", json={"prompt": "x"})
        assert [spec.prefill_address for spec in worker.specs] == [""]


async def test_pages_show_prefill_workers_and_handoffs() -> None:
    async with fleet(1) as made:
        listed = (await made.router.http.get("/workers")).json()["workers"]
        assert [worker["role"] for worker in listed] == ["decode", "prefill"]
        page = (await made.router.http.get("/metrics")).text
        for name in (
            "sglang:num_decode_prealloc_queue_reqs",
            "sglang:num_decode_transfer_queue_reqs",
            "sglang:kv_transfer_latency_ms_count",
            "sglang:kv_transfer_speed_gb_s_sum",
        ):
            assert name in page
