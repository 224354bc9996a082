"""Threads for a worker's snapshot folder, so that its event loop never waits for a disk; decides nothing.

They are its own: they end with it, and a disk that hangs keeps nothing else from a thread.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

from segue.errors import SnapshotFailed

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

THREAD_NAME = "snapshot-folder"


class FolderThreads:
    """What has begun when `close` is called is finished, and nothing is begun after it.

    Calls of one kind should share them: who takes a moment waits for whoever takes minutes.
    """

    def __init__(self, threads_max: int) -> None:
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix=THREAD_NAME)
        self._closed, self._closing = False, threading.Lock()
        self._waited_for: set[Future[Any]] = set()

    def begin(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Has it called. Raises SnapshotFailed after `close`."""
        with self._closing:
            if self._closed:
                raise _ended()
            future = self._pool.submit(self._call, partial(call, *args, **kwargs))
            self._waited_for.add(future)
        future.add_done_callback(self._returned)
        return future

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, awaited. Whoever is cancelled meanwhile leaves a call that has begun to itself."""
        return await asyncio.wrap_future(self.begin(call, *args, **kwargs))

    def close(self, timeout_s: float) -> None:
        """Returns when the threads have ended, or after that time: a disk may hang for ever.

        What has not begun fails as what comes later does.
        """
        with self._closing:
            self._closed = True
            waited_for = set(self._waited_for)
        left = wait_for(waited_for, timeout_s).not_done
        if left:
            log.warning("%d calls into the snapshot folder have not returned in %.0f s", len(left), timeout_s)
        self._pool.shutdown(wait=not left)

    def _call(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise _ended()
        return call()

    def _returned(self, future: Future[Any]) -> None:
        with self._closing:
            self._waited_for.discard(future)


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


def _ended() -> SnapshotFailed:
    return SnapshotFailed("the worker ends: nothing is done in its snapshot folder any more")
