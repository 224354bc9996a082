"""Old and new weights side by side: new requests go to either, and no output is begun by one and ended by the other."""

import asyncio
from dataclasses import replace

import pytest

from segue.batch.request import FinishReason
from segue.errors import WorkerUnavailable
from tests.router.reading import reading
from tests.router.served import QUICK, answer, served, turn
from tests.router.test_workers_lost import TOKENS, begun, complete, text
from tests.support.fake_worker import FakeWorker

OLD, NEW = "a" * 16, "b" * 16
IMPATIENT = replace(QUICK, continuation_grace_s=0.3)


def worker(worker_id: str, fingerprint: str, *, paused: bool = True) -> FakeWorker:
    return FakeWorker(answer, worker_id=worker_id, fingerprint=fingerprint, paused=paused)


async def the_busy_one(*workers: FakeWorker) -> FakeWorker:
    """The worker that has the one live choice."""
    while not (busy := [each for each in workers if each.live]):
        await turn()
    (one,) = busy
    return one


async def test_new_requests_go_to_either_group() -> None:
    async with worker("old", OLD, paused=False) as old, worker("new", NEW, paused=False) as new:
        async with served(old, new) as router:
            for _ in range(6):
                reply = await router.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 64})
                assert reply.status_code == 200
        assert old.specs
        assert new.specs


async def test_an_output_goes_on_in_its_own_group_past_an_idle_worker_of_another() -> None:
    async with (
        worker("first", OLD) as first,
        worker("second", OLD) as second,
        worker("new", NEW) as new,
        served(first) as router,
        reading(router.http) as stream,
    ):
        await begun(first, stream, 3)
        router.shell.fleet.set_addresses([second.address])
        async with reading(router.http) as beside:
            await begun(second, beside, 1)
            router.shell.fleet.set_addresses([first.address, second.address, new.address])
            await router.until_ready(3)
            await first.stop()
            await second.until(lambda: len(second.live) == 2)
            assert second.specs[-1].emitted == tuple(TOKENS[:3])
            second.step(64)
            await complete(stream)
            await complete(beside)
        assert new.specs == []


async def test_an_output_whose_group_is_gone_ends_with_an_error_and_no_token_of_another() -> None:
    async with worker("old", OLD) as old, served(old, config=IMPATIENT, ready=1) as router:
        async with reading(router.http) as stream, worker("new", NEW) as new:
            await begun(old, stream, 3)
            router.shell.fleet.set_addresses([old.address, new.address])
            await router.until_ready(2)
            await old.stop()
            await stream.until_over()
            assert stream.error is not None
            assert stream.error["code"] == "worker_unavailable"
            assert OLD in stream.error["message"]
            assert stream.text == text(3)
            assert not stream.done
            assert new.specs == []
            new.paused = False
            async with reading(router.http) as fresh:
                await complete(fresh)
        await router.until_idle()


async def test_a_whole_answer_whose_group_is_gone_is_a_503() -> None:
    body = {"prompt": "x", "max_tokens": 64}
    async with worker("old", OLD) as old, worker("new", NEW) as new, served(old, config=IMPATIENT) as router:
        async with reading(router.http) as beside:
            await begun(old, beside, 1)
            asking = asyncio.create_task(router.http.post("/v1/completions", json=body))
            await old.until(lambda: len(old.live) == 2)
            old.step(2)
            # The other stream shows that the router has heard of these steps.
            await beside.until_text(len(text(3)))
            router.shell.fleet.set_addresses([old.address, new.address])
            await router.until_ready(2)
            await old.stop()
            reply = await asking
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "worker_unavailable")
        assert reply.headers["retry-after"] == "1"
        assert new.specs == []


async def test_new_weights_under_the_old_address_do_not_go_on_with_what_the_old_ones_began() -> None:
    async with worker("old", OLD) as old:
        new = worker("new", NEW)
        async with served(old, config=IMPATIENT) as router, reading(router.http) as stream:
            await begun(old, stream, 2)
            await old.stop()
            await new.start(old.port)
            try:
                await stream.until_over()
                assert stream.error is not None
                assert stream.text == text(2)
                await router.until_ready(1)
                assert new.specs == []
            finally:
                await new.stop()


@pytest.mark.parametrize("refusing", [False, True])
async def test_a_choice_that_has_said_nothing_yet_may_go_to_the_other_group(refusing: bool) -> None:
    async with worker("old", OLD) as old, worker("new", NEW) as new, served(old, new) as router:  # noqa: SIM117
        async with reading(router.http) as stream:
            home = await the_busy_one(old, new)
            other = new if home is old else old
            if refusing:
                home.refusals = [WorkerUnavailable("draining")] * 8
                (handle,) = home.live
                home.end(handle, FinishReason.CANCELLED)
            else:
                await home.stop()
            await other.until(lambda: len(other.live) == 1)
            assert other.specs[-1].emitted == ()
            other.step(64)
            await complete(stream)
