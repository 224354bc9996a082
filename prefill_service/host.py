"""A prefill worker on its port, from loading to the last handoff; knows nothing of processes or who keeps it up."""

import asyncio
import logging
import uuid
from collections.abc import Callable

import grpc.aio

from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from kv_transfer.hosting.listener import Listener
from kv_transfer.hosting.loading import Loaded
from kv_transfer.hosting.neighbours import Neighbours
from kv_transfer.peer_servicer import PeerServicer
from kv_transfer.prefill_servicer import PrefillServicer
from prefill_service.servicer import StatusServicer
from prefill_service.worker import PrefillWorker
from segue.ids import WorkerId
from segue.v1 import transfer_pb2, worker_pb2
from segue.v1.transfer_pb2_grpc import add_PeerServicer_to_server, add_PrefillServicer_to_server
from segue.v1.worker_pb2_grpc import add_WorkerServicer_to_server
from segue.wire.channel import PLAIN, TlsConfig

log = logging.getLogger(__name__)

_SERVICES = [
    worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name,
    transfer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name,
    transfer_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name,
]


class PrefillHost:
    """One worker under a name of its own. Event-loop thread only."""

    def __init__(
        self,
        config: WorkerConfig,
        transfer: TransferConfig | None = None,
        neighbours: Neighbours | None = None,
        tls: TlsConfig = PLAIN,
    ) -> None:
        """Binds first of all: a port that is taken is told, by ConfigError, before weights are read."""
        transfer = transfer or TransferConfig()
        self._config = config
        self._listener = Listener(config, min(config.silence_s, transfer.silence_s), tls)
        self.worker = PrefillWorker(WorkerId(f"prefill-{uuid.uuid4().hex[:12]}"), transfer, neighbours, tls)

    @property
    def address(self) -> str:
        """Where the worker listens, host:port."""
        return self._listener.address

    @property
    def broken(self) -> "asyncio.Future[BaseException]":
        """Ends with what broke the worker, if anything ever does."""
        return self.worker.broken

    async def start(self, build: Callable[[], Loaded]) -> None:
        """Builds the engine and takes connections. Raises what building it raised; may be cancelled until it returns.

        The engine thread of a cancelled start is a daemon: it ends with the process, and nobody was promised anything.
        """
        await self.worker.start(build)
        await self._listener.start(self._register, _SERVICES)

    async def stop(self) -> None:
        """Takes no new work from now on, finishes what runs within the drain budget, and closes the port."""
        await self._listener.announce_end()
        if not self.worker.broken.done():
            log.info("draining for at most %.0f s", self._config.drain_s)
            await self.worker.drain(self._config.drain_s)
        await self._listener.stop()
        await self.worker.close()

    def _register(self, server: grpc.aio.Server) -> None:
        exchange = self.worker.exchange
        add_WorkerServicer_to_server(StatusServicer(self.worker), server)
        add_PeerServicer_to_server(PeerServicer(exchange.peers, exchange.withdraw), server)
        add_PrefillServicer_to_server(PrefillServicer(self.worker.serve), server)
