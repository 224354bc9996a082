"""An event loop in a thread of its own, for work that must not share one with Ray's; knows nothing of the work."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs until the process ends."""

    def __init__(self, name: str, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self._loop = make_loop()
        # A daemon: its work is ended by those who gave it, and a process that must end does not wait for it.
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def block_on(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there to its end, while the caller's thread waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there to its end, while the caller's loop turns."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
