"""A worker's threads for its folder: many who ask at once share one look, one who leaves takes it from nobody."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from decode_service.snapshots.service import LOADS_MAX, Snapshots
from decode_service.snapshots.threads import THREAD_NAME, FolderThreads, SharedLook
from decode_service.worker import Worker
from segue.errors import SnapshotFailed, SnapshotNotFound
from segue.ids import WorkerId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.names import new_id
from tests.decode_service.router_end import spec
from tests.decode_service.snapshots.keepers import BOUNDED, stalled
from tests.handoff.pair import QUICK, engine_config, loading


class Folder:
    """A folder that is looked into when its gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.looking = threading.Semaphore(0)
        self.looks = 0

    def list(self) -> int:
        self.looks += 1
        number = self.looks
        self.looking.release()
        assert self.gate.wait(10)
        return number


@contextmanager
def threads() -> Iterator[FolderThreads]:
    made = FolderThreads(2)
    try:
        yield made
    finally:
        made.close(10)
    assert not [one for one in threading.enumerate() if one.name.startswith(THREAD_NAME)]


async def begun(folder: Folder, asking: "asyncio.Task[int]") -> None:
    assert await asyncio.to_thread(folder.looking.acquire, timeout=10)
    assert not asking.done()


async def test_who_comes_while_somebody_looks_shares_the_next_look() -> None:
    with threads() as made:
        folder = Folder()
        listing = SharedLook(made, folder.list)
        first = asyncio.create_task(listing.ask())
        await begun(folder, first)
        others = [asyncio.create_task(listing.ask()) for _ in range(32)]
        await asyncio.wait(others, timeout=0)
        folder.gate.set()
        assert await first == 1
        assert await asyncio.gather(*others) == [2] * 32
        assert folder.looks == 2


async def test_who_leaves_takes_the_look_from_nobody() -> None:
    with threads() as made:
        folder = Folder()
        listing = SharedLook(made, folder.list)
        first = asyncio.create_task(listing.ask())
        await begun(folder, first)
        leaving, staying = asyncio.create_task(listing.ask()), asyncio.create_task(listing.ask())
        await asyncio.wait((leaving, staying), timeout=0)
        for one in (first, leaving):
            one.cancel()
            with pytest.raises(asyncio.CancelledError):
                await one
        folder.gate.set()
        assert await staying == 2


async def test_a_call_that_hangs_can_be_left() -> None:
    with threads() as made:
        folder = Folder()
        calling = asyncio.create_task(made.run(folder.list))
        await begun(folder, calling)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        folder.gate.set()


async def test_after_the_end_nothing_is_begun() -> None:
    with threads() as made:
        pass
    with pytest.raises(SnapshotFailed, match="ends"):
        await made.run(int)
    with pytest.raises(SnapshotFailed, match="ends"):
        await SharedLook(made, int).ask()


async def test_a_disk_that_hangs_does_not_keep_a_worker_from_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """What has not begun by then never does, and whoever waits for it hears that."""
    made, folder = FolderThreads(1), Folder()
    hanging = asyncio.create_task(made.run(folder.list))
    await begun(folder, hanging)
    others = [asyncio.create_task(made.run(folder.list)) for _ in range(3)]
    await asyncio.wait(others, timeout=0)
    await asyncio.to_thread(made.close, 0.1)
    assert "4 calls into the snapshot folder have not returned" in caplog.text
    assert not hanging.done()
    folder.gate.set()
    assert await hanging == 1
    for one in others:
        with pytest.raises(SnapshotFailed, match="ends"):
            await one
    assert folder.looks == 1


async def test_whoever_takes_a_moment_does_not_wait_for_states_that_are_read(tmp_path: Path) -> None:
    snapshots, gate = Snapshots(SnapshotConfig(folder=str(tmp_path)), WorkerId("w")), threading.Event()
    reading = [snapshots._loads.begin(gate.wait, 20) for _ in range(LOADS_MAX)]
    assert await asyncio.wait_for(snapshots.list(), 10) == []
    with pytest.raises(SnapshotNotFound):
        await asyncio.wait_for(snapshots.delete(new_id()), 10)
    assert not any(one.done() for one in reading)
    gate.set()
    await snapshots.close()


class Spoiled(Snapshots):
    """Keeping it clean runs into a mistake of ours."""

    async def keep_clean(self) -> None:
        expired = -1
        assert expired >= 0, "fewer than no snapshots have expired"


async def test_a_mistake_in_keeping_the_folder_clean_breaks_the_worker(model: Path, tmp_path: Path) -> None:
    name = WorkerId("w")
    worker = Worker(QUICK, name, snapshots=Spoiled(SnapshotConfig(folder=str(tmp_path)), name))
    await worker.start(loading(engine_config(model, "both", **BOUNDED)))
    assert str(await asyncio.wait_for(worker.broken, 10)).startswith("fewer than no snapshots")
    assert not worker.ready
    await worker.drain(1)


async def test_nobody_keeps_the_folder_clean_when_its_worker_has_ended(model: Path, tmp_path: Path) -> None:
    name = WorkerId("w")
    worker = Worker(QUICK, name, snapshots=Snapshots(SnapshotConfig(folder=str(tmp_path)), name))
    await worker.start(loading(engine_config(model, "both", **BOUNDED)))
    await worker.drain(1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_continuation_goes_without_a_copy_that_is_not_found_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = SnapshotConfig(folder=str(tmp_path), every_tokens=20)
    snapshots = Snapshots(config, WorkerId("w"), find_copy_s=0.1)
    with stalled(tmp_path):
        assert await asyncio.wait_for(snapshots.opened(spec("slow", emitted=(1, 2))), 10) is None
    assert "copies of request slow" in caplog.text
    await snapshots.close()
