"""Snapshots in which choices of this router were parked and that nobody goes on from: deleted by a worker that can."""

import asyncio
from dataclasses import dataclass, field
from functools import partial

from router.config import RouterConfig
from router.fleet import Fleet
from router.link import Link, LinkState
from segue.errors import ServingError, SnapshotError, SnapshotNotFound
from segue.ids import WorkerId

KEPT_S = 600.0
"""How long a worker is waited for that could; whatever is left after that expires in its folder."""
COUNT_MAX = 4096


@dataclass(slots=True)
class _Leftover:
    until: float
    # Those that do not have it. A process that comes after them may find it in a folder of its own.
    asked: set[WorkerId] = field(default_factory=set)


class Leftovers:
    """`run` must run beside whoever discards anything."""

    def __init__(self, fleet: Fleet, config: RouterConfig) -> None:
        self._fleet = fleet
        self._config = config
        self._left: dict[str, _Leftover] = {}
        self._more = asyncio.Event()
        # Workers that are being asked: each by one task.
        self._asking: set[Link] = set()

    def discard(self, snapshot_id: str) -> None:
        """Nobody goes on from it. It may not be there, or not yet."""
        self._left.pop(snapshot_id, None)
        if len(self._left) >= COUNT_MAX:
            del self._left[next(iter(self._left))]
        self._left[snapshot_id] = _Leftover(asyncio.get_running_loop().time() + KEPT_S)
        self._more.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._more.wait()
                self._more.clear()
                while self._left:
                    for link in self._fleet.links:
                        # Each worker is asked for one after another: a disk that hangs holds up nobody else.
                        if link.keeps_snapshots and link.state is LinkState.READY and link not in self._asking:
                            self._asking.add(link)
                            group.create_task(self._ask(link)).add_done_callback(partial(self._asked, link))
                    await self._fleet.wait_change(self._config.heartbeat_s)
                    self._expire()

    def _asked(self, link: Link, _: "asyncio.Task[None]") -> None:
        self._asking.discard(link)

    async def _ask(self, link: Link) -> None:
        """Has one worker delete what it has of all that is left now."""
        about = link.description
        assert about is not None, "only described workers are asked for snapshots"
        for snapshot_id, leftover in list(self._left.items()):
            if self._left.get(snapshot_id) is not leftover or about.worker_id in leftover.asked:
                continue
            try:
                await link.client.delete_snapshot(snapshot_id, self._config.call_timeout_s)
            except SnapshotNotFound:
                leftover.asked.add(about.worker_id)
            except SnapshotError:
                # Claimed by one who was about to go on from it, or its disk is not well: it is asked again.
                continue
            except ServingError:
                # So is a worker that is not well, but not for every other snapshot now.
                return
            else:
                self._forget(snapshot_id, leftover)

    def _expire(self) -> None:
        now = asyncio.get_running_loop().time()
        for snapshot_id, leftover in list(self._left.items()):
            if now >= leftover.until:
                self._forget(snapshot_id, leftover)

    def _forget(self, snapshot_id: str, leftover: _Leftover) -> None:
        """Unless it was discarded again meanwhile: then it is looked for again."""
        if self._left.get(snapshot_id) is leftover:
            del self._left[snapshot_id]
