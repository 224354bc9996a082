"""Keeps one process in the directory while it serves; a directory that is away costs nothing but a later heartbeat."""

import asyncio
import contextlib
import logging

from deploy.directory import Entry
from deploy.directory_actor import DirectoryClient
from segue.errors import WorkerUnavailable

log = logging.getLogger("segue.deploy")


class Registration:
    """Heartbeats from `enter` to `leave`, both on one event loop."""

    def __init__(self, client: DirectoryClient, entry: Entry, heartbeat_s: float) -> None:
        self._client = client
        self._entry = entry
        self._heartbeat_s = heartbeat_s
        self._beating: asyncio.Task[None] | None = None

    def enter(self) -> None:
        assert self._beating is None, "a process enters the directory once"
        self._beating = asyncio.create_task(self._beat())

    async def leave(self) -> None:
        """Ends the heartbeats and takes the entry out; where that cannot be said, the lease ends it."""
        assert self._beating is not None, "only who entered can leave"
        self._beating.cancel()
        # No beat may still be under way: it would enter us again.
        await asyncio.gather(self._beating, return_exceptions=True)
        with contextlib.suppress(WorkerUnavailable):
            await self._client.leave(self._entry.member_id)

    async def _beat(self) -> None:
        while True:
            try:
                await self._client.beat(self._entry)
            except WorkerUnavailable as error:
                log.warning("%s", error.message)
            await asyncio.sleep(self._heartbeat_s)
