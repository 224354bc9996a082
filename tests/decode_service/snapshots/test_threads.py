"""A worker's threads for its folder: many who ask at once share one look, one who leaves takes it from nobody."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from decode_service.snapshots.threads import THREAD_NAME, FolderThreads, SharedLook
from segue.errors import SnapshotFailed


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
    made = FolderThreads()
    try:
        yield made
    finally:
        made.close()
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
