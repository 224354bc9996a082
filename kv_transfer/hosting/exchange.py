"""This worker among its peers: who they are, how bytes reach them and from them, and which of them have died."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from kv_transfer.arena_map import map_arena
from kv_transfer.desk import Desk
from kv_transfer.handover import Handover
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.loading import Identity
from kv_transfer.hosting.neighbours import Neighbours
from kv_transfer.local_link import LocalLink
from kv_transfer.nixl_agent import NixlAgent, NixlConfig
from kv_transfer.outbox import GrpcLink, Outbox
from kv_transfer.peers import Peer, Peers
from kv_transfer.plan import Side
from kv_transfer.process import ProcessWatch, own_process
from kv_transfer.scratch import Scratch
from kv_transfer.transport import Link
from segue.errors import ConfigError, PeerLost, TransferRefused
from segue.handoff import Start, Ticket, TransportName
from segue.ids import WorkerId
from segue.peering import Introduction, ProcessIdentity
from segue.state.storage import Storage
from segue.wire import PROTOCOL_VERSION
from segue.wire.channel import PLAIN, TlsConfig
from segue.wire.peer_client import PeerClient

log = logging.getLogger(__name__)

# How often leases and the life of peers are looked at.
_TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Way:
    """A connected peer: who answered at an address, and how it sends to this worker."""

    client: PeerClient
    peer: Peer
    transport: TransportName


class Exchange:
    """Owned by one event loop, on which `run` must run."""

    @staticmethod
    async def open(
        worker_id: WorkerId,
        identity: Identity,
        storage: Storage,
        config: TransferConfig,
        neighbours: Neighbours | None = None,
        tls: TlsConfig = PLAIN,
        watch: Callable[[ProcessIdentity], ProcessWatch | None] = ProcessWatch.open,
    ) -> "Exchange":
        """Starts NIXL, if it may be chosen. Where it cannot run, state travels as messages.

        `watch` gives None for a process that cannot be seen from here.
        """
        scratch = Scratch(storage.arena.device)
        agent = await asyncio.to_thread(_agent, worker_id, storage, scratch, config)
        if neighbours is not None:
            neighbours.enter(worker_id, storage.regions)
        return Exchange(worker_id, identity, storage, config, agent, scratch, neighbours, tls, watch)

    def __init__(
        self,
        worker_id: WorkerId,
        identity: Identity,
        storage: Storage,
        config: TransferConfig,
        agent: NixlAgent | None,
        scratch: Scratch,
        neighbours: Neighbours | None,
        tls: TlsConfig,
        watch: Callable[[ProcessIdentity], ProcessWatch | None],
    ) -> None:
        facts = identity.facts
        self.side = Side(facts.layouts, facts.page_tokens, facts.window)
        self.arena = map_arena(storage)
        self.storage = storage
        self._config = config
        self._agent = agent
        self._neighbours = neighbours
        self._tls = tls
        allowed = [name for name in config.allowed if name is not TransportName.LOCAL or neighbours is not None]
        introduction = Introduction(
            worker_id=worker_id,
            protocol_version=PROTOCOL_VERSION,
            fingerprint=identity.fields,
            tp_size=facts.tp_size,
            arena=self.arena,
            process=own_process(),
        )
        self.peers = Peers(introduction, agent, scratch, allowed, timeout_s=config.connect_s, watch=watch)
        self._desks: dict[WorkerId, Desk] = {}
        self._ways: dict[str, Way] = {}
        self._clients: dict[str, PeerClient] = {}
        self._connecting: dict[str, asyncio.Lock] = {}

    async def run(self, died: Callable[[WorkerId], None]) -> None:
        """Looks after leases and peers until cancelled. Raises what broke the transport.

        `died` is called for every peer whose process is proven gone.
        """
        while True:
            await asyncio.sleep(_TICK_S)
            if self._agent is not None and self._agent.broken.done():
                self._agent.broken.result()
            for worker_id in self.peers.take_dead():
                await self._bury(worker_id)
                died(worker_id)
            for desk in self._desks.values():
                desk.pump()

    async def close(self) -> None:
        """Ends every connection."""
        if self._neighbours is not None:
            self._neighbours.leave(self.peers.introduction.worker_id)
        for client in self._clients.values():
            await client.close()
        if self._agent is not None:
            await asyncio.to_thread(self._agent.close)

    # As a receiver

    async def way(self, address: str) -> Way:
        """The peer at an address; introduces both sides once. Raises what `Peers.connect` does."""
        async with self._connecting.setdefault(address, asyncio.Lock()):
            if (way := self._ways.get(address)) is not None:
                return way
            client = self._clients.setdefault(address, PeerClient(address, self._tls))
            peer, transport = await self.peers.connect(client)
            way = self._ways[address] = Way(client, peer, transport)
            return way

    def doubt(self, way: Way) -> None:
        """The peer did not answer as it should: the next request introduces itself again."""
        if self._ways.get(way.client.address) is way:
            del self._ways[way.client.address]

    def expect(self) -> None:
        """A peer may write into this process's memory from now on; balanced by `unexpect`."""
        if self._agent is not None:
            self._agent.expect()

    def unexpect(self) -> None:
        """One expected peer is done."""
        if self._agent is not None:
            self._agent.unexpect()

    async def settle(self, way: Way, ticket: Ticket) -> None:
        """Returns once the peer has said that nothing is, or will be, written under the ticket.

        Raises WorkerUnavailable while it does not, PeerLost when another process answers at its address.
        """
        ours = self.peers.introduction
        theirs = await way.client.connect(ours, self._config.connect_s)
        if theirs.worker_id != way.peer.introduction.worker_id:
            raise PeerLost(f"{theirs.worker_id} answers where {way.peer.introduction.worker_id} was")
        await way.client.settle(ours.worker_id, ticket, self._config.connect_s)

    async def inquire(self, way: Way) -> None:
        """Asks those who may know whether the peer's process is gone; if so, `run` soon says that it died.

        The one who answers at its address now is asked whoever it is: one with other weights introduces itself in vain.
        """
        peer = way.peer.introduction
        addresses = {way.client.address, *self.peers.beside(peer)}
        await self.peers.inquire(peer, [self._clients[address] for address in sorted(addresses)])

    # As a sender

    def desk(self, peer: WorkerId) -> Desk:
        """Where everything that goes to one peer is kept."""
        if (desk := self._desks.get(peer)) is None:
            desk = self._desks[peer] = Desk(asyncio.get_running_loop(), time.monotonic)
        return desk

    def handover(self, start: Start, outbox: Outbox) -> Handover:
        """The sender's side of one call. Raises TransferRefused for a worker that has not introduced itself."""
        peer = self.peers.find(start.worker_id)
        link: Link | None = GrpcLink(outbox)
        if start.transport is TransportName.NIXL:
            link = peer.link
        elif start.transport is TransportName.LOCAL:
            target = self._neighbours.regions(start.worker_id) if self._neighbours is not None else None
            link = None if target is None else LocalLink(self.storage.regions, target)
        if link is None:
            raise TransferRefused(f"worker {start.worker_id} cannot be reached by {start.transport} from here")
        desk = self.desk(start.worker_id)
        return Handover(desk, outbox, link, ours=self.arena, side=self.side, peer=peer.introduction)

    async def withdraw(self, peer: WorkerId, ticket: Ticket) -> None:
        """A receiver wants nothing more under a ticket; returns once that is so."""
        await self.desk(peer).settle(ticket)

    async def _bury(self, peer: WorkerId) -> None:
        log.warning("the process of peer %s is gone", peer)
        if (desk := self._desks.pop(peer, None)) is not None:
            desk.lost(PeerLost(f"the process of {peer} is gone"))
        self._ways = {address: way for address, way in self._ways.items() if way.peer.introduction.worker_id != peer}
        await self.peers.bury(peer)


def _agent(worker_id: WorkerId, storage: Storage, scratch: Scratch, config: TransferConfig) -> NixlAgent | None:
    if TransportName.NIXL not in config.allowed:
        return None
    try:
        return NixlAgent(str(worker_id), storage.regions, scratch.memory, NixlConfig(ucx_tls=config.ucx_tls))
    except ConfigError as error:
        if config.allowed == (TransportName.NIXL,):
            raise
        log.warning("state will travel as messages: %s", error.message)
        return None
