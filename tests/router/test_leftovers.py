"""Parked snapshots that nobody goes on from are deleted by whoever has them, whatever the other workers do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from segue.errors import ServingError, SnapshotFailed, WorkerUnavailable
from segue.state.snapshot.manifest import Manifest
from tests.router.served import Served, answer, served, turn
from tests.router.snapshotting import COMPLETIONS, KEEPING, Asked, first_half
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

# Longer than any test here waits for anything.
PATIENT = replace(KEEPING, call_timeout_s=120.0)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[FakeWorker, FakeWorker, Served, Manifest]]:
    """A router of two workers with folders of their own, and what may be put there."""
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as writer,
        served(writer, config=KEEPING) as router,
    ):
        half = await first_half(router, writer, Asked(COMPLETIONS, {"prompt": "x", "max_tokens": 64}), 2, 0)
        assert half.snapshot_id is not None
        manifest = writer.snapshots.folder.manifests[half.snapshot_id]
    async with (
        FakeWorker(answer, worker_id="a", folder=FakeFolder()) as a,
        FakeWorker(answer, worker_id="b", folder=FakeFolder()) as b,
        served(a, b, config=PATIENT) as router,
    ):
        yield a, b, router, manifest


async def test_a_disk_that_hangs_holds_up_no_other() -> None:
    async with two() as (a, b, router, manifest):
        a.snapshots.deleting.clear()
        folder = b.snapshots.folder
        for _ in range(3):
            router.shell.leftovers.discard(folder.put(manifest, manifest.request))
        await emptied(folder)
        await asked(a, 1)
        router.shell.leftovers.discard(folder.put(manifest, manifest.request))
        await emptied(folder)
        # That one has one call of it, and no more.
        assert len(a.snapshots.looked_for) == 1
        a.snapshots.deleting.set()


@pytest.mark.parametrize("error", [SnapshotFailed("a bad sector"), WorkerUnavailable("it starts")], ids=str)
async def test_a_worker_that_fails_is_asked_again(error: ServingError) -> None:
    async with two() as (a, b, router, manifest):
        a.snapshots.failing = error
        folder = a.snapshots.folder
        router.shell.leftovers.discard(folder.put(manifest, manifest.request))
        await asked(a, 2)
        a.snapshots.failing = None
        await emptied(folder)
        # One that does not have it is asked once.
        await asked(b, 1)


async def asked(worker: FakeWorker, times: int) -> None:
    async with asyncio.timeout(20):
        while len(worker.snapshots.looked_for) < times:
            await turn()
    assert len(worker.snapshots.looked_for) == times


async def emptied(folder: FakeFolder) -> None:
    async with asyncio.timeout(20):
        while folder.manifests:
            await turn()
