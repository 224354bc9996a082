"""The front door's bounded room and queue, first come first served; knows nothing of requests but their size."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from segue.errors import QueueFull, QueueTimeout


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    count: int
    admitted: asyncio.Future[None]


class Admission:
    """Room for `inflight_max` choices; up to `queue_max` requests wait for it, each at most `queue_timeout_s`."""

    def __init__(self, inflight_max: int, queue_max: int, queue_timeout_s: float) -> None:
        self._inflight_max = inflight_max
        self._queue_max = queue_max
        self._queue_timeout_s = queue_timeout_s
        self._inflight = 0
        self._queue: deque[_Waiting] = deque()

    @property
    def inflight(self) -> int:
        """Choices that hold room now."""
        return self._inflight

    @property
    def waiting(self) -> int:
        """Requests in the queue now."""
        return len(self._queue)

    @asynccontextmanager
    async def room(self, count: int) -> AsyncIterator[None]:
        """Holds room for `count` choices. Raises QueueFull at once, or QueueTimeout after waiting."""
        await self._enter(count)
        try:
            yield
        finally:
            self._leave(count)

    async def _enter(self, count: int) -> None:
        assert 0 < count <= self._inflight_max, f"{count} choices never fit {self._inflight_max}"
        if not self._queue and self._inflight + count <= self._inflight_max:
            self._inflight += count
            return
        if len(self._queue) >= self._queue_max:
            raise QueueFull(
                f"{self._inflight} choices are running and {len(self._queue)} requests wait; come back later"
            )
        waiting = _Waiting(count, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            async with asyncio.timeout(self._queue_timeout_s):
                await waiting.admitted
        except BaseException as error:
            self._give_up(waiting)
            if isinstance(error, TimeoutError):
                raise QueueTimeout(f"the request waited {self._queue_timeout_s:g} s in the queue") from error
            raise

    def _give_up(self, waiting: _Waiting) -> None:
        # Room may have been given in the same turn of the loop in which the wait ended.
        if waiting.admitted.done() and not waiting.admitted.cancelled():
            self._leave(waiting.count)
        else:
            self._queue.remove(waiting)
            self._admit()

    def _leave(self, count: int) -> None:
        self._inflight -= count
        assert self._inflight >= 0, "more room was returned than taken"
        self._admit()

    def _admit(self) -> None:
        while self._queue and self._inflight + self._queue[0].count <= self._inflight_max:
            first = self._queue.popleft()
            # A waiter that was cancelled in this turn of the loop takes itself out of the queue.
            if first.admitted.cancelled():
                self._queue.appendleft(first)
                return
            self._inflight += first.count
            first.admitted.set_result(None)
