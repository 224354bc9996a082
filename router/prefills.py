"""All prefill workers of a router, and which of them a request should go through."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from router.config import PlacementPolicy, RouterConfig
from router.placement import Candidate, Placement
from router.prefill_worker import PrefillWorker
from segue.wire.channel import TlsConfig


class Prefills:
    """`start` runs a worker's own loop as a task; `changed` is called when a worker comes or goes."""

    def __init__(
        self,
        config: RouterConfig,
        start: Callable[[Coroutine[Any, Any, None]], "asyncio.Task[None]"],
        changed: Callable[[], None],
        tls: TlsConfig,
    ) -> None:
        self._config = config
        self._start = start
        self._changed = changed
        self._tls = tls
        self._placement = Placement(PlacementPolicy(config.placement))
        self._running: dict[PrefillWorker, asyncio.Task[None]] = {}

    @property
    def workers(self) -> tuple[PrefillWorker, ...]:
        return tuple(self._running)

    def set_addresses(self, addresses: Sequence[str]) -> None:
        """Makes these the workers. What is on its way through another is between that one and its decode worker."""
        for worker in self.workers:
            if worker.address not in addresses:
                self._running.pop(worker).cancel()
        known = {worker.address for worker in self.workers}
        for address in dict.fromkeys(addresses):
            if address not in known:
                worker = PrefillWorker(address, self._config, self._changed, self._tls)
                self._running[worker] = self._start(worker.run())

    def pick(self, fingerprint: str, excluded: Collection[str], now: float) -> PrefillWorker | None:
        """A worker that fits decode workers of this fingerprint, or None. Excluded ones only where no other is able."""
        able = {worker.address: worker for worker in self._able(fingerprint, now)}
        preferred = [address for address in able if address not in excluded] or list(able)
        candidates = [Candidate(address, able[address].load) for address in preferred]
        return able[self._placement.choose(candidates, None).address] if candidates else None

    def any_able(self, fingerprint: str, now: float, excluded: Collection[str] = ()) -> bool:
        """Whether `pick` would find one that is not excluded."""
        return any(worker.address not in excluded for worker in self._able(fingerprint, now))

    def close(self) -> None:
        """Ends every loop."""
        for task in self._running.values():
            task.cancel()

    def _able(self, fingerprint: str, now: float) -> list[PrefillWorker]:
        return [
            worker
            for worker in self.workers
            if worker.ready
            and worker.breaker.allows(now)
            and worker.description is not None
            and worker.description.fingerprint == fingerprint
        ]
