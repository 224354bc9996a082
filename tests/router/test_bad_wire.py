"""Messages between router and worker that arrive damaged: the client sees one right output, and nothing is left."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from segue.v1 import worker_pb2 as pb
from tests.router.reading import reading, reading_from
from tests.router.served import ANSWER, Served, answer, served
from tests.router.snapshotting import COMPLETIONS, KEEPING, NAMED, code, resume, second_half, take, until_taken
from tests.router.test_workers_lost import complete
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker
from tests.support.wire_proxy import Messages, WireProxy

CUTS = pytest.mark.parametrize("share", [0.0, 0.5, 0.9], ids=["empty", "half", "most"])


class Cut:
    """Cuts the first message that it is meant for, and counts those."""

    def __init__(self, share: float, meant: Callable[[bytes], bool] = lambda message: True, times: int = 1) -> None:
        self._share, self._meant, self._left = share, meant, times
        self.count = 0

    async def __call__(self, messages: Messages) -> Messages:
        async for message in messages:
            if self._left > 0 and self._meant(message):
                self._left -= 1
                self.count += 1
                yield message[: int(self._share * len(message))]
            else:
                yield message


@asynccontextmanager
async def behind_a_proxy(worker: FakeWorker) -> AsyncIterator[tuple[WireProxy, Served]]:
    async with WireProxy(worker.address) as proxy, served(proxy.address) as router:
        yield proxy, router


def has_tokens(message: bytes) -> bool:
    return bool(pb.WorkerMessage.FromString(message).step.token_id)


@CUTS
async def test_a_step_that_is_cut_is_said_again(share: float) -> None:
    async with FakeWorker(answer, paused=True) as worker, behind_a_proxy(worker) as (proxy, router):
        cut = Cut(share, has_tokens)
        async with reading(router.http) as stream:
            await worker.until(lambda: len(worker.live) == 1)
            proxy.down["Session"] = cut
            # The proxy looks at its disturbances when a call begins: so a session that begins now has them.
            worker.break_stream()
            await worker.until(lambda: len(worker.attaches) == 2)
            worker.step(2)
            await worker.until(lambda: len(worker.attaches) == 3)
            assert cut.count == 1
            worker.step(64)
            await complete(stream)
        assert len(worker.specs) == 1
        await router.until_idle()


@CUTS
async def test_an_acceptance_that_is_cut_is_tried_again_and_the_lost_one_taken_back(share: float) -> None:
    async with FakeWorker(answer, paused=True) as worker, behind_a_proxy(worker) as (proxy, router):
        cut = proxy.down["Generate"] = Cut(min(share, 0.5))
        async with reading(router.http) as stream:
            await worker.until(lambda: len(worker.specs) == 2)
            assert cut.count == 1
            worker.paused = False
            await complete(stream)
        assert worker.specs[1].attempt > worker.specs[0].attempt
        await worker.until(lambda: not worker.live)
        await router.until_idle()


@CUTS
@pytest.mark.parametrize("method", ["Describe", "Status"])
async def test_a_worker_whose_word_is_cut_is_not_ready_until_it_is_whole(share: float, method: str) -> None:
    prefill, decode = FakeWorker(answer, role="prefill"), FakeWorker(answer, role="decode")
    async with prefill, decode, WireProxy(prefill.address) as first, WireProxy(decode.address) as second:
        cuts = [Cut(share, times=2) for _ in range(2)]
        first.down[method], second.down[method] = cuts
        async with served(second.address, prefills=[first.address], ready=0) as router:
            await router.until_ready(1)
            while not (reply := await router.http.post("/v1/completions", json={"prompt": "x"})).is_success:
                assert reply.status_code == 503
            assert (await router.http.get("/metrics")).status_code == 200
            assert cuts[0].count == 2


@CUTS
async def test_a_request_that_is_cut_is_refused_and_sent_again(share: float) -> None:
    async with FakeWorker(answer) as worker, behind_a_proxy(worker) as (proxy, router):
        cut = proxy.up["Generate"] = Cut(share)
        reply = await router.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 64})
        assert cut.count == 1
        assert reply.status_code == 200
        assert reply.json()["choices"][0]["text"] == ANSWER
        await router.until_idle()


@CUTS
async def test_an_export_whose_call_or_answer_is_cut_leaves_one_owner_of_the_request(share: float) -> None:
    folder = FakeFolder()
    config = replace(KEEPING, call_timeout_s=1.0)
    async with (
        FakeWorker(answer, paused=True, folder=folder) as worker,
        WireProxy(worker.address) as proxy,
        served(proxy.address, config=config) as router,
        reading_from(router.http, COMPLETIONS, {"prompt": "x", "max_tokens": 64}, NAMED) as stream,
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(3)
        await until_taken(router, 3)
        proxy.up["TakeSnapshot"] = Cut(share)
        assert (await take(router)).is_error
        assert not folder.manifests
        worker.step()
        await until_taken(router, 4)
        proxy.up.clear()
        proxy.down["TakeSnapshot"] = Cut(share)
        assert (await take(router)).status_code == 503
        await stream.until_over()
        (snapshot_id,) = folder.manifests
        assert stream.events[-1]["choices"][0]["snapshot_id"] == snapshot_id
        got = await take(router)
        assert code(got) == (404, "request_not_found")
        proxy.down["InspectSnapshot"] = Cut(share)
        assert (await resume(router, snapshot_id)).status_code == 503
        rest = await second_half(router, worker, snapshot_id, stream=True)
        assert stream.text + rest.text == ANSWER


async def test_a_connection_that_breaks_under_many_streams_breaks_none_of_them() -> None:
    async with FakeWorker(answer, paused=True) as worker, behind_a_proxy(worker) as (proxy, router):
        async with reading(router.http) as one, reading(router.http) as other:
            await worker.until(lambda: len(worker.live) == 2)
            worker.step(3)
            await one.until_text(1)
            await other.until_text(1)
            await proxy.restart()
            worker.paused = False
            await complete(one)
            await complete(other)
        await router.until_idle()
