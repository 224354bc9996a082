"""A worker that ends while no other could go on has its choices parked: their clients wait, and see one output."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from router.config import RouterConfig
from segue.errors import (
    ServingError,
    SnapshotCapacity,
    SnapshotDigestMismatch,
    SnapshotFailed,
    SnapshotFolderFull,
    SnapshotForeign,
    SnapshotNotReady,
    WorkerUnavailable,
)
from tests.router.reading import Reading, reading_from, text_of
from tests.router.served import ANSWER, Served, answer, served, tokenizer, turn
from tests.router.snapshotting import ADMIN, COMPLETIONS, KEEPING, NAME, NAMED, code, resume, take, until_taken
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

BODY = {"prompt": "x", "max_tokens": 64}
TOKENS = tokenizer().encode(ANSWER)


@dataclass
class Sole:
    """A stream with its first tokens, at the only worker of a router."""

    worker: FakeWorker
    prefill: FakeWorker
    router: Served
    stream: Reading
    stack: AsyncExitStack
    client: AsyncExitStack
    folder: FakeFolder

    async def parked(self, count: int = 1) -> None:
        """The worker ends, until it has let so many choices go."""
        self.worker.ending = True
        await self.worker.until(lambda: len(self.folder.manifests) == count and not self.worker.live)

    async def followed(self) -> FakeWorker:
        """Another process at the address of the worker, which has ended."""
        await self.worker.stop()
        new = FakeWorker(answer, worker_id="new", paused=True, folder=self.folder)
        await new.start(self.worker.port)
        self.stack.push_async_callback(new.stop)
        return new

    async def ended(self, worker: FakeWorker) -> None:
        """The client has the whole answer, and nothing is left of it anywhere."""
        await worker.until(lambda: bool(worker.live))
        worker.step(64)
        await self.stream.until_over()
        assert (self.stream.error, self.stream.text, self.stream.done) == (None, ANSWER, True)
        await self.router.until_idle()

    async def counted(self) -> Sequence[int]:
        """Choices that were parked, taken on again, and continued without their state."""
        page = (await self.router.http.get("/metrics")).text
        values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
        names = ("segue:parked_streams_total", "segue:unparked_streams_total", "segue:continuations_total")
        return [int(float(values[name])) for name in names]


@asynccontextmanager
async def sole(config: RouterConfig = KEEPING, role: str = "both", **body: object) -> AsyncIterator[Sole]:
    folder = FakeFolder()
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(FakeWorker(answer, paused=True, folder=folder, role=role))
        prefill = await stack.enter_async_context(FakeWorker(answer, worker_id="p", role="prefill"))
        router = await stack.enter_async_context(served(worker, prefills=[prefill], config=config))
        client = await stack.enter_async_context(AsyncExitStack())
        stream = await client.enter_async_context(reading_from(router.http, COMPLETIONS, {**BODY, **body}, NAMED))
        await worker.until(lambda: len(worker.live) == body.get("n", 1))
        worker.step(3)
        await until_taken(router, 3)
        await _until(lambda: all(len(one.taken) == 3 for one in router.shell.running.find(NAME).choices))
        yield Sole(worker, prefill, router, stream, stack, client, folder)


@pytest.mark.parametrize("role", ["both", "decode"])
async def test_a_choice_waits_in_a_snapshot_until_its_worker_is_back(role: str) -> None:
    async with sole(role=role) as it:
        await it.parked()
        new = await it.followed()
        await new.until(lambda: bool(new.live))
        (asked,), (spec,) = it.worker.snapshots.asked, new.specs
        assert (spec.snapshot_id, spec.snapshot_doubtful, spec.prefill_address) == (asked.snapshot_id, True, "")
        assert (asked.parked, asked.copy, asked.about, asked.served) == (True, False, b"{}", 0)
        assert (spec.emitted, spec.claimant) == (tuple(TOKENS[:3]), it.worker.specs[0].claimant)
        assert spec.attempt > it.worker.specs[0].attempt
        assert not it.folder.manifests
        await it.ended(new)
        assert await it.counted() == [1, 1, 0]
        assert not new.snapshots.looked_for


async def test_what_ends_within_the_budget_of_its_worker_is_not_cut() -> None:
    async with sole() as it:
        link = it.router.shell.fleet.links[0]
        it.worker.draining = True
        await _until(lambda: link.draining)
        await _looks(it.router)
        assert not it.worker.snapshots.asked
        await it.ended(it.worker)
        assert await it.counted() == [0, 0, 0]


async def test_another_process_at_the_address_is_not_ending() -> None:
    async with sole() as it:
        await it.parked()
        new = await it.followed()
        await new.until(lambda: bool(new.live))
        new.draining = True
        link = it.router.shell.fleet.links[0]
        await _until(lambda: link.draining)
        await _looks(it.router)
        assert not new.snapshots.asked
        await it.ended(new)


async def test_it_may_go_on_at_any_worker_that_reads_the_same_folder() -> None:
    async with sole() as it, FakeWorker(answer, worker_id="b", paused=True, folder=it.folder) as other:
        await it.parked()
        it.router.shell.fleet.set_addresses([it.worker.address, other.address])
        await it.ended(other)
        assert other.specs[0].snapshot_id
        assert await it.counted() == [1, 1, 0]


async def test_every_choice_of_a_request_is_parked_by_itself() -> None:
    async with sole(n=2) as it:
        await it.parked(2)
        assert len({asked.snapshot_id for asked in it.worker.snapshots.asked}) == 2
        new = await it.followed()
        await new.until(lambda: len(new.live) == 2)
        new.step(64)
        await it.stream.until_over()
        texts = ["", ""]
        for event in it.stream.events:
            for choice in event["choices"]:
                texts[choice["index"]] += text_of(choice)
        assert (texts, it.stream.done) == ([ANSWER] * 2, True)
        assert await it.counted() == [2, 2, 0]
        assert not it.folder.manifests


async def test_an_answer_that_is_no_stream_waits_as_well() -> None:
    async with sole() as it:
        asking = asyncio.create_task(it.router.http.post(COMPLETIONS, json=BODY))
        await it.worker.until(lambda: len(it.worker.live) == 2)
        it.worker.step(3)
        await it.parked(2)
        new = await it.followed()
        await new.until(lambda: len(new.live) == 2)
        await it.ended(new)
        assert text_of((await asking).json()["choices"][0]) == ANSWER


async def test_what_comes_while_it_is_written_is_told_once() -> None:
    async with sole() as it:
        it.worker.snapshots.deciding.clear()
        it.worker.ending = True
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        it.worker.step(2)
        await it.stream.until_text(len(tokenizer().decode(TOKENS[:5])))
        it.worker.snapshots.deciding.set()
        await it.parked()
        new = await it.followed()
        await it.ended(new)
        assert new.specs[0].emitted == tuple(TOKENS[:5])


async def test_one_that_has_no_whole_state_yet_is_asked_again_under_another_name() -> None:
    async with sole() as it:
        it.worker.snapshots.refusals = [SnapshotNotReady("it is being extended")] * 3
        await it.parked()
        names = [asked.snapshot_id for asked in it.worker.snapshots.asked]
        assert len(set(names)) == 4
        new = await it.followed()
        await it.ended(new)
        assert new.specs[0].snapshot_id == names[-1]


async def test_one_that_ends_before_it_has_a_whole_state_is_not_waited_for() -> None:
    async with sole() as it:
        it.worker.snapshots.deciding.clear()
        it.worker.ending = True
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        await it.ended(it.worker)
        it.worker.snapshots.deciding.set()
        assert await it.counted() == [0, 0, 0]
        assert not it.folder.manifests


@pytest.mark.parametrize(
    "error",
    [SnapshotFolderFull("no room"), SnapshotFailed("a bad sector"), ServingError("a bug")],
    ids=lambda e: e.kind.code,
)
async def test_a_worker_that_cannot_write_is_asked_once_and_runs_on(error: ServingError) -> None:
    async with sole() as it:
        it.worker.snapshots.refusals = [error]
        it.worker.ending = True
        await it.worker.until(lambda: bool(it.worker.snapshots.asked) and not it.worker.snapshots.refusals)
        await _looks(it.router)
        assert len(it.worker.snapshots.asked) == 1
        # Nobody looks for what was refused.
        new = await it.followed()
        await it.ended(new)
        assert (new.specs[0].snapshot_id, new.specs[0].emitted) == ("", tuple(TOKENS[:3]))
        assert await it.counted() == [0, 0, 1]


async def test_one_whose_worker_ended_while_it_wrote_is_looked_for() -> None:
    """Whether it came to be only the folder knows."""
    async with sole() as it:
        it.worker.snapshots.refusals = [WorkerUnavailable("the worker ended")]
        it.worker.ending = True
        await it.worker.until(lambda: bool(it.worker.snapshots.asked) and not it.worker.snapshots.refusals)
        await _looks(it.router)
        (asked,) = it.worker.snapshots.asked
        new = await it.followed()
        await it.ended(new)
        assert (new.specs[0].snapshot_id, new.specs[0].snapshot_doubtful) == (asked.snapshot_id, True)
        assert await it.counted() == [0, 0, 1]


@pytest.mark.parametrize("written", [False, True])
async def test_one_whose_worker_was_killed_while_it_was_asked_is_looked_for(written: bool) -> None:
    async with sole() as it:
        it.worker.snapshots.mute = it.worker.snapshots.reply_lost = True
        if not written:
            it.worker.snapshots.deciding.clear()
        it.worker.ending = True
        await it.worker.until(lambda: bool(it.folder.manifests if written else it.worker.snapshots.asked))
        new = await it.followed()
        await it.ended(new)
        (asked,) = it.worker.snapshots.asked
        assert (new.specs[0].snapshot_id, new.specs[0].emitted) == (asked.snapshot_id, tuple(TOKENS[:3]))
        assert not it.folder.manifests
        assert await it.counted() == ([1, 1, 0] if written else [0, 0, 1])


@pytest.mark.parametrize("when", ["parked", "written"])
async def test_a_client_that_leaves_leaves_no_snapshot(when: str) -> None:
    async with sole() as it:
        if when == "parked":
            await it.parked()
        else:
            it.worker.snapshots.deciding.clear()
            it.worker.snapshots.stands = True
            it.worker.ending = True
            await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        await it.client.aclose()
        await it.router.until_left()
        if when == "parked":
            await it.followed()
        else:
            # It was looked for before it was there.
            await _until(lambda: bool(it.worker.cancels and it.worker.snapshots.looked_for))
            it.worker.snapshots.deciding.set()
            # By the worker that wrote it, when it has.
            await it.worker.until(lambda: bool(it.folder.manifests))
        await _until(lambda: not it.folder.manifests)


async def test_a_deadline_that_passes_ends_it_and_leaves_no_snapshot() -> None:
    async with sole(config=replace(KEEPING, request_timeout_s=1.5)) as it:
        await it.parked()
        await it.stream.until_over()
        assert it.stream.error is not None
        assert it.stream.error["code"] == "deadline_exceeded"
        assert it.stream.text == tokenizer().decode(TOKENS[:3])
        await it.followed()
        await _until(lambda: not it.folder.manifests)


async def test_nobody_waits_for_a_worker_longer_than_for_one_that_was_lost() -> None:
    async with sole(config=replace(KEEPING, continuation_grace_s=0.5)) as it:
        await it.parked()
        await it.worker.stop()
        await it.stream.until_over()
        assert it.stream.error is not None
        assert it.stream.error["code"] == "worker_unavailable"
        await it.followed()
        await _until(lambda: not it.folder.manifests)


async def test_the_wait_begins_when_the_worker_has_ended() -> None:
    """Until then it may be busy with others, that cannot be parked."""
    async with sole(config=replace(KEEPING, continuation_grace_s=1.5)) as it:
        await it.parked()
        for _ in range(3):
            await _looks(it.router)
        await it.ended(await it.followed())


async def test_what_is_claimed_when_it_is_to_be_deleted_is_deleted_later() -> None:
    async with sole(config=replace(KEEPING, continuation_grace_s=0.5)) as it:
        await it.parked()
        (name,) = it.folder.manifests
        await it.worker.stop()
        await it.stream.until_over()
        it.folder.claimed[name] = "somebody"
        new = await it.followed()
        await _until(lambda: bool(new.snapshots.looked_for))
        del it.folder.claimed[name]
        await _until(lambda: not it.folder.manifests)


async def test_a_snapshot_that_cannot_be_used_is_deleted_and_the_choice_computed_again() -> None:
    async with sole() as it:
        await it.parked()
        await it.worker.stop()
        new = FakeWorker(answer, worker_id="new", paused=True, folder=it.folder)
        new.refusals = [SnapshotDigestMismatch("rank-0: full")]
        await new.start(it.worker.port)
        it.stack.push_async_callback(new.stop)
        await it.ended(new)
        assert [bool(spec.snapshot_id) for spec in new.specs] == [True, False]
        assert new.specs[1].emitted == tuple(TOKENS[:3])
        await _until(lambda: not it.folder.manifests)
        assert await it.counted() == [1, 0, 1]


@pytest.mark.parametrize(
    "error",
    [SnapshotFailed("a bad sector"), SnapshotForeign("another key"), SnapshotCapacity("too small")],
    ids=lambda e: e.kind.code,
)
async def test_what_one_worker_cannot_use_another_one_may(error: ServingError) -> None:
    async with sole(config=replace(KEEPING, continuation_grace_s=60.0)) as it:
        await it.parked()
        await it.worker.stop()
        unable = FakeWorker(answer, worker_id="unable", paused=True, folder=it.folder)
        unable.refusals = [error] * 64
        await unable.start(it.worker.port)
        it.stack.push_async_callback(unable.stop)
        # More often than a request is tried at all.
        await unable.until(lambda: len(unable.specs) > it.router.shell.config.attempts_max)
        assert it.folder.manifests
        async with FakeWorker(answer, worker_id="b", paused=True, folder=it.folder) as other:
            it.router.shell.fleet.set_addresses([it.worker.address, other.address])
            await it.ended(other)
        assert other.specs[0].snapshot_id
        assert all(spec.snapshot_id for spec in unable.specs)
        assert await it.counted() == [1, 1, 0]


async def test_what_nobody_could_use_in_time_is_computed_again() -> None:
    async with sole(config=replace(KEEPING, continuation_grace_s=0.5)) as it:
        await it.parked()
        await it.worker.stop()
        new = FakeWorker(answer, worker_id="new", paused=True, folder=it.folder)
        new.refuses_snapshots = SnapshotForeign("another key")
        await new.start(it.worker.port)
        it.stack.push_async_callback(new.stop)
        await it.ended(new)
        assert [bool(spec.snapshot_id) for spec in new.specs[-2:]] == [True, False]
        assert new.specs[-1].emitted == tuple(TOKENS[:3])
        await _until(lambda: not it.folder.manifests)
        assert await it.counted() == [1, 0, 1]


async def test_it_is_not_resumed_by_hand() -> None:
    """Its client still waits, and it says nothing of what that has."""
    async with sole() as it:
        await it.parked()
        (name,) = it.folder.manifests
        listed = (await it.router.http.get("/v1/snapshots", headers=ADMIN)).json()["snapshots"]
        assert [(entry["id"], entry["kind"]) for entry in listed] == [(name, "parked")]
        for stream in (False, True):
            got = await resume(it.router, name, stream=stream)
            assert code(got) == (409, "snapshot_source_mismatch")
            assert "parked" in got.json()["error"]["message"]
        await it.ended(await it.followed())


async def test_a_snapshot_that_somebody_else_has_claimed_is_theirs() -> None:
    async with sole() as it:
        await it.parked()
        (name,) = it.folder.manifests
        it.folder.claimed[name] = "somebody"
        new = await it.followed()
        await it.stream.until_over()
        assert it.stream.error is not None
        assert it.stream.error["code"] == "snapshot_claimed"
        await _looks(it.router)
        assert not new.snapshots.looked_for
        assert it.folder.manifests


async def test_a_worker_with_a_folder_of_its_own_computes_it_and_the_first_one_deletes_it() -> None:
    async with sole() as it, FakeWorker(answer, worker_id="b", paused=True, folder=FakeFolder()) as other:
        await it.parked()
        await it.worker.stop()
        it.router.shell.fleet.set_addresses([it.worker.address, other.address])
        await it.ended(other)
        assert other.specs[0].emitted == tuple(TOKENS[:3])
        assert it.folder.manifests
        assert await it.counted() == [1, 0, 1]
        await it.followed()
        await _until(lambda: not it.folder.manifests)


async def test_a_worker_that_comes_back_without_a_folder_computes_it() -> None:
    async with sole(config=replace(KEEPING, continuation_grace_s=120.0)) as it:
        await it.parked()
        await it.worker.stop()
        new = FakeWorker(answer, worker_id="new", paused=True)
        await new.start(it.worker.port)
        it.stack.push_async_callback(new.stop)
        await it.ended(new)
        assert (new.specs[0].snapshot_id, new.specs[0].emitted) == ("", tuple(TOKENS[:3]))
        assert await it.counted() == [1, 0, 1]


@pytest.mark.parametrize("roles", [("both", "both"), ("decode", "decode"), ("decode", "both")])
async def test_where_another_worker_is_there_nobody_is_parked(roles: tuple[str, str]) -> None:
    async with (
        sole(role=roles[0]) as it,
        FakeWorker(answer, worker_id="b", paused=True, folder=it.folder, role=roles[1]) as other,
    ):
        it.router.shell.fleet.set_addresses([it.worker.address, other.address])
        await it.router.until_ready(2)
        await _ends(it)
        assert not it.worker.snapshots.asked
        # When that is gone, it is time.
        await other.stop()
        await it.parked()
        await it.ended(await it.followed())


@pytest.mark.parametrize("prefills", [False, True])
async def test_a_worker_that_has_nobody_to_compute_a_prompt_is_no_other(prefills: bool) -> None:
    """The state of what runs in role both does not move."""
    async with sole() as it, FakeWorker(answer, worker_id="d", paused=True, role="decode") as decode:
        fleet = it.router.shell.fleet
        fleet.set_addresses([it.worker.address, decode.address], [it.prefill.address] if prefills else [])
        await it.router.until_ready(2)
        if prefills:
            await _until(lambda: all(one.ready for one in fleet.prefills.workers))
        await _ends(it)
        assert bool(it.worker.snapshots.asked) is not prefills
        await it.ended(it.worker if prefills else await it.followed())


async def test_a_worker_that_keeps_no_snapshots_is_asked_for_none() -> None:
    async with (
        FakeWorker(answer, paused=True) as worker,
        served(worker, config=KEEPING) as router,
        reading_from(router.http, COMPLETIONS, BODY, NAMED) as stream,
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(3)
        await until_taken(router, 3)
        worker.ending = True
        await _until(lambda: router.shell.fleet.links[0].ending)
        await _looks(router)
        assert not worker.snapshots.asked
        worker.step(64)
        await stream.until_over()
        assert stream.text == ANSWER


async def test_a_router_that_ends_parks_nobody() -> None:
    async with sole() as it:
        it.router.server.stop()
        await _ends(it)
        assert not it.worker.snapshots.asked
        await it.ended(it.worker)


async def test_nobody_else_takes_a_snapshot_of_what_is_being_parked() -> None:
    async with sole() as it:
        it.worker.snapshots.deciding.clear()
        it.worker.ending = True
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        assert code(await take(it.router)) == (409, "snapshot_not_ready")
        it.worker.snapshots.deciding.set()
        await it.parked()
        assert code(await take(it.router)) == (409, "snapshot_not_ready")
        await it.ended(await it.followed())


async def test_what_somebody_takes_by_hand_is_not_parked() -> None:
    async with sole() as it:
        it.worker.snapshots.deciding.clear()
        taking = asyncio.create_task(take(it.router))
        await it.worker.until(lambda: bool(it.worker.snapshots.asked))
        await _ends(it)
        it.worker.snapshots.deciding.set()
        assert (await taking).status_code == 200
        await it.stream.until_over()
        assert it.stream.reason == "snapshot"
        assert len(it.worker.snapshots.asked) == 1
        assert it.folder.manifests


async def _ends(it: Sole) -> None:
    """The worker is ending, which the router knows and has had time to do something about."""
    link = it.router.shell.fleet.links[0]
    it.worker.ending = True
    await _until(lambda: link.ending)
    await _looks(it.router)


async def _looks(router: Served) -> None:
    """Returns when the router has had time to look several times at what its workers do."""
    end = asyncio.get_running_loop().time() + 6 * router.shell.config.heartbeat_s
    while asyncio.get_running_loop().time() < end:
        await turn()


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(20):
        while not condition():
            await turn()
