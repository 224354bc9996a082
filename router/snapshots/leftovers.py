"""Snapshots in which choices of this router were parked and that nobody goes on from: deleted by a worker that can."""

import asyncio
from dataclasses import dataclass, field

from router.config import RouterConfig
from router.fleet import Fleet
from router.link import Link, LinkState
from segue.errors import ServingError, SnapshotNotFound
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

    def discard(self, snapshot_id: str) -> None:
        """Nobody goes on from it. It may not be there, or not yet."""
        self._left.pop(snapshot_id, None)
        if len(self._left) >= COUNT_MAX:
            del self._left[next(iter(self._left))]
        self._left[snapshot_id] = _Leftover(asyncio.get_running_loop().time() + KEPT_S)
        self._more.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._left:
                for snapshot_id, leftover in list(self._left.items()):
                    done = await self._deleted(snapshot_id, leftover) or self._expired(leftover)
                    # What was discarded again meanwhile is looked for again.
                    if done and self._left.get(snapshot_id) is leftover:
                        del self._left[snapshot_id]
                await self._fleet.wait_change(self._config.heartbeat_s)

    async def _deleted(self, snapshot_id: str, leftover: _Leftover) -> bool:
        for link in self._fleet.links:
            about = link.description
            if about is None or not about.snapshots or link.state is not LinkState.READY:
                continue
            if about.worker_id not in leftover.asked and await self._asked(link, snapshot_id, leftover):
                return True
        return False

    async def _asked(self, link: Link, snapshot_id: str, leftover: _Leftover) -> bool:
        assert link.description is not None, "only described workers are asked for snapshots"
        worker_id = link.description.worker_id
        try:
            await link.client.delete_snapshot(snapshot_id, self._config.call_timeout_s)
        except SnapshotNotFound:
            leftover.asked.add(worker_id)
            return False
        except ServingError:
            # Claimed by one who was about to go on from it, or the worker is not well: it is asked again.
            return False
        return True

    def _expired(self, leftover: _Leftover) -> bool:
        return asyncio.get_running_loop().time() >= leftover.until
