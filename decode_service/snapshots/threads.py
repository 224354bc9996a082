"""Threads for a worker's snapshot folder, so that its event loop never waits for a disk; decides nothing.

They are its own: they end with it, and a disk that hangs keeps nothing else from a thread.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

from segue.errors import SnapshotFailed

P = ParamSpec("P")
T = TypeVar("T")

THREADS_MAX = 16
THREAD_NAME = "snapshot-folder"


class FolderThreads:
    """What has begun when `close` is called is finished, and nothing is begun after it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix=THREAD_NAME)
        self._closed, self._closing = False, threading.Lock()

    def begin(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Has it called. Raises SnapshotFailed after `close`."""
        with self._closing:
            if self._closed:
                raise SnapshotFailed("the worker ends: nothing is done in its snapshot folder any more")
            return self._pool.submit(call, *args, **kwargs)

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, awaited. Whoever is cancelled meanwhile leaves a call that has begun to itself."""
        return await asyncio.wrap_future(self.begin(call, *args, **kwargs))

    def close(self) -> None:
        """Returns when the threads have ended."""
        with self._closing:
            self._closed = True
        self._pool.shutdown(wait=True)


class SharedLook(Generic[T]):
    """One look into the folder for all who ask before it begins, however many they are."""

    def __init__(self, threads: FolderThreads, look: Callable[[], T]) -> None:
        self._threads = threads
        self._look = look
        self._coming: Future[T] | None = None
        self._asking, self._looking = threading.Lock(), threading.Lock()

    async def ask(self) -> T:
        """What a look sees that begins after this call. Raises what it raised, or SnapshotFailed after `close`."""
        with self._asking:
            if self._coming is None:
                self._coming = self._threads.begin(self._begin)
            coming = self._coming
        # Shielded: one who leaves takes it from nobody else.
        return await asyncio.shield(asyncio.wrap_future(coming))

    def _begin(self) -> T:
        # One after another: meanwhile those who come gather for the next one.
        with self._looking:
            with self._asking:
                self._coming = None
            return self._look()
