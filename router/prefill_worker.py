"""A prefill worker as the router knows it: whether it answers, how much it has to do, and whether it may be asked.

No session leads there: decode workers call it, and each request is told which one to call.
"""

import asyncio
import logging
from collections.abc import Callable

from router.breaker import Breaker
from router.config import RouterConfig
from segue.errors import ServingError, TransferFailed
from segue.wire import PROTOCOL_VERSION, WorkerDescription, WorkerStatus
from segue.wire.channel import TlsConfig
from segue.wire.client import WorkerClient

log = logging.getLogger("segue.router")


class PrefillWorker:
    """The worker at one address. `run` keeps looking at it; `changed` is called when it comes or goes."""

    def __init__(self, address: str, config: RouterConfig, changed: Callable[[], None], tls: TlsConfig) -> None:
        self.address = address
        self.breaker = Breaker(config.breaker_faults, config.breaker_cooldown_s)
        self.description: WorkerDescription | None = None
        self.status: WorkerStatus | None = None
        self.load = 0
        self._config = config
        self._changed = changed
        self._client = WorkerClient(address, tls)

    @property
    def ready(self) -> bool:
        """Whether it answered when it was last looked at, and takes prompts."""
        return self.status is not None and self.status.ready

    async def run(self) -> None:
        """Looks again and again until cancelled."""
        try:
            while True:
                ready = self.ready
                await self._look()
                if self.ready != ready:
                    log.info("prefill worker %s %s", self.address, "is ready" if self.ready else "is away")
                    self._changed()
                await asyncio.sleep(self._config.heartbeat_s if self.ready else self._config.reconnect_wait_s)
        finally:
            await self._client.close()

    def begin(self, now: float) -> None:
        """A request is told to go there; `succeed`, `fail` or `withdraw` must follow."""
        self.breaker.begin(now)
        self.load += 1

    def succeed(self) -> None:
        """The request has its first token."""
        self.load -= 1
        self.breaker.succeed()

    def fail(self, error: ServingError, now: float) -> None:
        """The request failed on its way through there. Until the next look, nobody is sent after it."""
        self.load -= 1
        self.breaker.fail(error, now)
        if not isinstance(error, TransferFailed):
            self.status = None
            self._changed()

    def withdraw(self) -> None:
        """It will never be known what became of the request there."""
        self.load -= 1
        self.breaker.withdraw()

    async def _look(self) -> None:
        timeout_s = self._config.heartbeat_timeout_s
        try:
            status = await self._client.status(timeout_s)
            if self.description is None or self.description.worker_id != status.worker_id:
                self.description = await self._client.describe(timeout_s)
                self.breaker.succeed()
        except ServingError:
            self.status = None
            return
        same_protocol = self.description.protocol_version == PROTOCOL_VERSION
        self.status = status if same_protocol else None
