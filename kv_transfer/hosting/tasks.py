"""Tasks that belong to somebody: none is forgotten, and one that fails by our own mistake is told of."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class OwnedTasks:
    """Owned by one event loop. `broken` is told what ended a task."""

    def __init__(self, broken: Callable[[BaseException], None]) -> None:
        self._broken = broken
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Cancels what runs and waits for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)
