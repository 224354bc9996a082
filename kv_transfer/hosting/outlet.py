"""From the engine thread to the event loop: news, posted with at most one wake-up each; interprets nothing."""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

N = TypeVar("N")


class Outlet(Generic[N]):
    """Hands news over to `deliver` on the loop.

    What piles up while the loop is busy is handed over together; it is bounded by the output budgets of live requests.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        deliver: Callable[[N], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._deliver = deliver
        self._failed = failed
        self._pending: list[N] = []
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Nobody listens any more: what the engine thread still says is dropped, and touches no loop."""
        with self._lock:
            self._closed = True

    def post(self, news: N) -> None:
        """Engine thread: passes news on. Never blocks."""
        with self._lock:
            if self._closed:
                return
            self._pending.append(news)
            if len(self._pending) == 1:
                self._loop.call_soon_threadsafe(self._drain)

    def fail(self, error: BaseException) -> None:
        """Any thread: the worker is broken; what was posted before is delivered before. To say so again is no news."""
        with self._lock:
            if not self._closed:
                self._loop.call_soon_threadsafe(self._failed, error)

    def _drain(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
        for news in pending:
            self._deliver(news)
