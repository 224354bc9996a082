"""Long work of snapshots goes beside the event loop, which every stream waits for; short work is not worth a thread."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Each is about a millisecond's work.
TOKENS_INLINE_MAX = 512
BYTES_INLINE_MAX = 16 << 10
ENTRIES_INLINE_MAX = 64


async def beside(size: int, inline_max: int, call: Callable[[], T]) -> T:
    """What `call` returns or raises; on a thread if there is more to do than `inline_max`."""
    return call() if size <= inline_max else await asyncio.to_thread(call)
