"""A snapshot is taken of what can be taken, exactly once; what keeps it from that leaves the client's stream alone."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import pytest

from segue.batch.request import FinishReason
from segue.errors import (
    ServingError,
    SnapshotFailed,
    SnapshotFolderFull,
    SnapshotNotReady,
    SnapshotsOff,
    WorkerUnavailable,
)
from tests.router.reading import Reading, reading_from
from tests.router.served import ANSWER, Served, answer, served, tokenizer
from tests.router.snapshotting import COMPLETIONS, KEEPING, NAME, NAMED, code, second_half, take, until_taken
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

BODY = {"prompt": "x", "max_tokens": 64}
TOKENS = tokenizer().encode(ANSWER)


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream that has its first tokens."""

    worker: FakeWorker
    router: Served
    stream: Reading


@asynccontextmanager
async def begun(tokens: int = 3, config: object = KEEPING, **body: object) -> AsyncIterator[Begun]:
    assert isinstance(config, type(KEEPING)), "a router's"
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=config) as router,
        reading_from(router.http, COMPLETIONS, {**BODY, **body}, NAMED) as stream,
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(tokens)
        if tokens:
            await until_taken(router, tokens)
        yield Begun(worker, router, stream)


async def goes_on(it: Begun) -> None:
    """The client has the whole answer in the end."""
    it.worker.step(200)
    await it.stream.until_over()
    assert (it.stream.text, it.stream.reason, it.stream.done) == (ANSWER, "stop", True)
    await it.router.until_idle()


async def test_an_export_answers_with_what_was_taken_and_ends_the_stream() -> None:
    async with begun(tokens=4) as it:
        got = await take(it.router)
        await it.stream.until_over()
        (snapshot_id,) = it.worker.snapshots.folder.manifests
        prompt_len = len(it.worker.specs[0].prompt)
        assert got.json() == {
            "id": snapshot_id,
            "request_id": NAME,
            "kind": "export",
            "computed": prompt_len + 3,
            "bytes": 4096,
        }
        assert it.stream.text == tokenizer().decode(TOKENS[:4])
        assert it.stream.done
        assert it.stream.events[-1]["choices"][0]["snapshot_id"] == snapshot_id
        assert not it.worker.cancels, "what left its worker is not cancelled there"
        await it.router.until_idle()
        metrics = (await it.router.http.get("/metrics")).text
        assert 'vllm:request_success_total{finished_reason="snapshot",model_name="fake"} 1.0' in metrics


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (SnapshotNotReady("it is being computed"), 409),
        (SnapshotFolderFull("no room"), 507),
        (SnapshotsOff("no folder"), 404),
        (ServingError("a bug"), 500),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("copy", [False, True])
async def test_a_refusal_passes_through_and_the_stream_goes_on(error: ServingError, status: int, copy: bool) -> None:
    async with begun() as it:
        it.worker.snapshots.refusals = [error]
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router, copy=copy))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        it.worker.step(2)
        it.worker.snapshots.deciding.set()
        assert code(await taking) == (status, error.kind.code)
        await goes_on(it)


async def test_while_an_export_is_under_way_nothing_is_given_out_and_no_other_is_begun() -> None:
    async with begun() as it:
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        it.worker.step(3)
        assert code(await take(it.router)) == (409, "snapshot_not_ready")
        assert code(await take(it.router, copy=True)) == (409, "snapshot_not_ready")
        assert it.stream.text == tokenizer().decode(TOKENS[:3])
        it.worker.snapshots.deciding.set()
        assert (await taking).status_code == 200
        await it.stream.until_over()
        assert it.stream.text == tokenizer().decode(TOKENS[:3])
        assert len(it.worker.snapshots.asked) == 1


async def test_a_request_that_ends_while_it_is_asked_for_ends_as_ever() -> None:
    async with begun() as it:
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        it.worker.step(200)
        it.worker.snapshots.deciding.set()
        assert code(await taking) == (409, "snapshot_not_ready")
        await goes_on(it)


async def test_a_lost_reply_does_not_hide_that_the_request_has_left() -> None:
    """The worker's session says so, and no token goes to the client that the snapshot does not count as served."""
    async with begun() as it:
        it.worker.snapshots.reply_lost = True
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        it.worker.step(2)
        it.worker.snapshots.deciding.set()
        assert code(await taking) == (503, "worker_unavailable")
        await it.stream.until_over()
        (snapshot_id,) = it.worker.snapshots.folder.manifests
        assert it.stream.text == tokenizer().decode(TOKENS[:3])
        assert it.stream.events[-1]["choices"][0]["snapshot_id"] == snapshot_id
        await it.router.until_idle()


async def test_after_a_lost_reply_to_a_request_that_stayed_the_stream_goes_on() -> None:
    async with begun(config=replace(KEEPING, call_timeout_s=0.3, snapshot_timeout_s=0.2)) as it:
        it.worker.snapshots.deciding.clear()
        assert code(await take(it.router)) == (503, "worker_unavailable")
        await goes_on(it)


async def test_a_worker_that_took_it_and_cannot_say_so_on_its_session_ends_the_stream_all_the_same() -> None:
    async with begun(config=replace(KEEPING, finish_wait_s=0.1)) as it:
        it.worker.snapshots.mute = True
        assert (await take(it.router)).status_code == 200
        await it.stream.until_over()
        assert (it.stream.reason, it.stream.done) == ("snapshot", True)
        await it.router.until_idle()


async def test_a_worker_that_dies_while_it_is_asked_leaves_the_request_to_another() -> None:
    private = FakeFolder()
    async with FakeWorker(answer, worker_id="b", paused=True, folder=private) as other, begun() as it:
        it.router.shell.fleet.set_addresses([it.worker.address, other.address])
        await it.router.until_ready(2)
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        await it.worker.stop()
        assert code(await taking) == (503, "worker_unavailable")
        await other.until(lambda: bool(other.live))
        assert other.specs[0].emitted == tuple(TOKENS[:3])
        # It was asked for first: had it been taken, it would have the request.
        (asked,) = it.worker.snapshots.asked
        assert (other.specs[0].snapshot_id, other.specs[0].snapshot_doubtful) == (asked.snapshot_id, True)
        other.step(200)
        await it.stream.until_over()
        assert it.stream.text == ANSWER


async def test_a_worker_that_dies_after_it_was_taken_leaves_the_snapshot_to_another() -> None:
    """Nobody is told of it, so the stream goes on from it, and it is used up."""
    async with begun(config=replace(KEEPING, call_timeout_s=2.0)) as it:
        shared = it.worker.snapshots.folder
        async with FakeWorker(answer, worker_id="b", paused=True, folder=shared) as other:
            it.router.shell.fleet.set_addresses([it.worker.address, other.address])
            await it.router.until_ready(2)
            it.worker.snapshots.mute = it.worker.snapshots.reply_lost = True
            taking = asyncio.create_task(take(it.router))
            await it.worker.until(lambda: bool(shared.manifests))
            await it.worker.stop()
            assert code(await taking) == (503, "worker_unavailable")
            await other.until(lambda: bool(other.live))
            assert not shared.manifests
            assert other.specs[0].emitted == tuple(TOKENS[:3])
            other.step(200)
            await it.stream.until_over()
            assert it.stream.text == ANSWER


@pytest.mark.parametrize(
    "error", [SnapshotFolderFull("no room"), SnapshotFailed("a bad sector")], ids=lambda e: e.kind.code
)
async def test_a_refused_export_is_asked_for_by_nobody(error: ServingError) -> None:
    async with FakeWorker(answer, worker_id="b", paused=True, folder=FakeFolder()) as other, begun() as it:
        it.router.shell.fleet.set_addresses([it.worker.address, other.address])
        await it.router.until_ready(2)
        it.worker.snapshots.refusals = [error]
        assert code(await take(it.router)) == (error.kind.http, error.kind.code)
        await it.worker.stop()
        await other.until(lambda: bool(other.live))
        assert (other.specs[0].snapshot_id, other.specs[0].snapshot_doubtful) == ("", False)
        other.step(200)
        await it.stream.until_over()
        assert it.stream.text == ANSWER


async def test_an_export_whose_worker_ended_while_it_wrote_is_asked_for() -> None:
    """What it had begun may have come to be after it had told that it ends."""
    async with (
        FakeWorker(answer, worker_id="b", paused=True, folder=FakeFolder()) as other,
        begun(config=replace(KEEPING, call_timeout_s=0.3)) as it,
    ):
        it.router.shell.fleet.set_addresses([it.worker.address, other.address])
        await it.router.until_ready(2)
        it.worker.snapshots.refusals = [WorkerUnavailable("it ended")]
        assert code(await take(it.router)) == (503, "worker_unavailable")
        await it.worker.stop()
        await other.until(lambda: bool(other.live))
        (asked,) = it.worker.snapshots.asked
        assert (other.specs[0].snapshot_id, other.specs[0].snapshot_doubtful) == (asked.snapshot_id, True)
        other.step(200)
        await it.stream.until_over()
        assert it.stream.text == ANSWER


async def test_a_client_that_leaves_while_it_is_asked_for_leaves_nothing_behind() -> None:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
    ):
        async with reading_from(router.http, COMPLETIONS, BODY, NAMED):
            await worker.until(lambda: bool(worker.live))
            worker.step(2)
            await until_taken(router, 2)
            worker.snapshots.deciding.clear()
            taking = asyncio.create_task(take(router))
            await worker.until(lambda: bool(worker.snapshots.asked))
        await worker.until(lambda: not worker.live)
        worker.snapshots.deciding.set()
        assert code(await taking) == (409, "snapshot_not_ready")
        await router.until_idle()


async def test_a_request_without_output_is_not_ready() -> None:
    async with begun(tokens=0) as it:
        assert code(await take(it.router)) == (409, "snapshot_not_ready")
        await goes_on(it)


async def test_a_request_that_is_between_two_workers_is_not_ready() -> None:
    async with begun() as it:
        it.worker.deciding.clear()
        it.worker.end(next(iter(it.worker.live)), FinishReason.CANCELLED)
        await it.worker.until(lambda: len(it.worker.specs) == 2)
        assert code(await take(it.router)) == (409, "snapshot_not_ready")
        it.worker.deciding.set()
        await it.worker.until(lambda: bool(it.worker.live))
        await goes_on(it)


async def test_a_request_with_several_choices_is_refused() -> None:
    async with begun(tokens=1, n=2) as it:
        got = await take(it.router)
        assert code(got) == (400, "invalid_request")
        assert "2 choices" in got.json()["error"]["message"]


@pytest.mark.parametrize("name", ["another", "a/b", "~"])
async def test_a_request_that_is_not_live_is_not_found(name: str) -> None:
    async with begun() as it:
        assert code(await take(it.router, name)) == (404, "request_not_found")
        await goes_on(it)
        assert code(await take(it.router)) == (404, "request_not_found")


async def test_a_request_is_found_under_a_name_with_slashes() -> None:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
        reading_from(router.http, COMPLETIONS, BODY, {"x-request-id": "team/a=1"}) as stream,
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(2)
        await until_taken(router, 2, "team/a=1")
        assert (await take(router, "team/a=1")).status_code == 200
        await stream.until_over()


async def test_a_worker_without_a_folder_takes_none() -> None:
    async with (
        FakeWorker(answer, paused=True) as worker,
        served(worker, config=KEEPING) as router,
        reading_from(router.http, COMPLETIONS, BODY, NAMED),
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(2)
        await until_taken(router, 2)
        assert code(await take(router)) == (404, "snapshots_off")
        assert code(await router.http.get("/v1/snapshots", headers=_admin())) == (404, "snapshots_off")
        assert not worker.snapshots.asked


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"copy": 1}', b'{"copies": true}', b'{"choice": 0}'])
async def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    async with begun() as it:
        got = await it.router.http.post(f"/v1/requests/{NAME}/snapshot", content=body, headers=_admin())
        assert code(got) == (400, "invalid_request")
        assert (await it.router.http.post(f"/v1/requests/{NAME}/snapshot", headers=_admin())).status_code == 200


async def everything(router: Served, headers: dict[str, str]) -> Sequence[httpx.Response]:
    http = router.http
    return [
        await http.post(f"/v1/requests/{NAME}/snapshot", headers=headers),
        await http.get("/v1/snapshots", headers=headers),
        await http.get("/v1/snapshots/1", headers=headers),
        await http.delete("/v1/snapshots/1", headers=headers),
        await http.post("/v1/snapshots/1/resume", headers=headers),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer clients"},
        {"authorization": "Bearer wrong"},
        {"authorization": f"Basic {KEEPING.admin_key}"},
        {"authorization": f"Bearer {KEEPING.admin_key}x"},
    ],
)
async def test_nobody_without_the_admin_key_gets_anywhere(headers: dict[str, str]) -> None:
    async with begun() as it, served(it.worker, config=replace(KEEPING, api_key="clients")) as router:
        for got in [*await everything(router, headers), *await everything(it.router, headers)]:
            assert code(got) == (401, "invalid_api_key")
        assert not it.worker.snapshots.asked


async def test_the_admin_key_opens_nothing_else() -> None:
    async with (
        FakeWorker(answer, folder=FakeFolder()) as worker,
        served(worker, config=replace(KEEPING, api_key="clients")) as router,
    ):
        assert code(await router.http.post(COMPLETIONS, json=BODY, headers=_admin())) == (401, "invalid_api_key")
        assert (await router.http.get("/v1/snapshots", headers=_admin())).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer"}, {"authorization": "Bearer x"}])
async def test_without_an_admin_key_there_are_no_snapshots(headers: dict[str, str]) -> None:
    async with begun(config=replace(KEEPING, admin_key="")) as it:
        for got in await everything(it.router, headers):
            assert code(got) == (404, "snapshots_off")
        await goes_on(it)


def _admin() -> dict[str, str]:
    return {"authorization": f"Bearer {KEEPING.admin_key}"}


async def test_at_its_deadline_a_client_is_told_though_its_request_is_being_taken_and_that_stands() -> None:
    async with begun(config=replace(KEEPING, request_timeout_s=1.0)) as it:
        snapshots = it.worker.snapshots
        snapshots.durable.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(snapshots.folder.manifests))
        await it.stream.until_over()
        assert it.stream.error is not None
        assert it.stream.error["code"] == "deadline_exceeded"
        assert it.stream.text == tokenizer().decode(TOKENS[:3])
        assert not taking.done()
        await it.router.until_idle()
        snapshots.durable.set()
        got = await taking
        assert (got.status_code, list(snapshots.folder.manifests)) == (200, [got.json()["id"]])
        rest = await second_half(it.router, it.worker, got.json()["id"], stream=True)
        assert it.stream.text + rest.text == ANSWER


async def test_a_request_whose_time_is_up_before_its_state_was_read_is_not_taken() -> None:
    async with begun(config=replace(KEEPING, request_timeout_s=1.0)) as it:
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        it.worker.step(2)
        await it.stream.until_over()
        assert it.stream.error is not None
        assert it.stream.error["code"] == "deadline_exceeded"
        assert it.stream.text == tokenizer().decode(TOKENS[:3])
        await it.worker.until(lambda: bool(it.worker.cancels))
        it.worker.snapshots.deciding.set()
        assert code(await taking) == (409, "snapshot_not_ready")
        assert not it.worker.snapshots.folder.manifests
