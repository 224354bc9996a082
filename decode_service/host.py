"""A decode worker on its port, from loading to the last answer; knows nothing of processes or who keeps it up."""

import asyncio
import logging
import uuid
from collections.abc import Callable

import grpc.aio

from decode_service.servicer import Servicer
from decode_service.snapshots.service import Snapshots
from decode_service.worker import Worker
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from kv_transfer.hosting.listener import Listener
from kv_transfer.hosting.loading import Loaded
from kv_transfer.hosting.neighbours import Neighbours
from kv_transfer.peer_servicer import PeerServicer
from kv_transfer.prefill_servicer import PrefillServicer
from segue.ids import WorkerId
from segue.state.snapshot.config import SnapshotConfig
from segue.v1 import transfer_pb2, worker_pb2
from segue.v1.transfer_pb2_grpc import add_PeerServicer_to_server, add_PrefillServicer_to_server
from segue.v1.worker_pb2_grpc import add_WorkerServicer_to_server
from segue.wire.channel import PLAIN, TlsConfig

log = logging.getLogger(__name__)

_WORKER = worker_pb2.DESCRIPTOR.services_by_name["Worker"].full_name
_PREFILL = transfer_pb2.DESCRIPTOR.services_by_name["Prefill"].full_name
_PEER = transfer_pb2.DESCRIPTOR.services_by_name["Peer"].full_name


class Host:
    """One worker under a name of its own. Event-loop thread only."""

    def __init__(
        self,
        config: WorkerConfig,
        transfer: TransferConfig | None = None,
        neighbours: Neighbours | None = None,
        tls: TlsConfig = PLAIN,
        snapshots: SnapshotConfig | None = None,
    ) -> None:
        """Binds first of all: a port that is taken is told, by ConfigError, before weights are read. So is a snapshot
        folder that cannot be used.
        """
        transfer = transfer or TransferConfig()
        self._config = config
        self._listener = Listener(config, min(config.silence_s, transfer.silence_s), tls)
        worker_id = WorkerId(f"decode-{uuid.uuid4().hex[:12]}")
        kept = Snapshots(snapshots, worker_id) if snapshots is not None and snapshots.folder else None
        self.worker = Worker(config, worker_id, transfer, neighbours, tls, kept)

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
        exchange = self.worker.exchange

        def register(server: grpc.aio.Server) -> None:
            add_WorkerServicer_to_server(Servicer(self.worker), server)
            if exchange is not None:
                add_PeerServicer_to_server(PeerServicer(exchange.peers, exchange.withdraw), server)
                add_PrefillServicer_to_server(PrefillServicer(self.worker.serve), server)

        await self._listener.start(register, [_WORKER] if exchange is None else [_WORKER, _PEER, _PREFILL])

    async def stop(self) -> None:
        """Takes no new work from now on, lets what runs go on elsewhere or finish in the budget, closes the port."""
        await self._listener.announce_end()
        if not self.worker.broken.done():
            log.info("draining for at most %.0f s", self._config.drain_s)
            await self.worker.drain(self._config.drain_s)
        await self._listener.stop()
