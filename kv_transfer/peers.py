"""The workers that this one exchanges state with: introductions, the self-test, transports, and which have died."""

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kv_transfer.choice import candidates
from kv_transfer.fingerprint import require_equal_fields
from kv_transfer.nixl_agent import NixlAgent
from kv_transfer.nixl_link import NixlLink
from kv_transfer.process import ProcessWatch
from kv_transfer.scratch import LOT_BYTES, Scratch
from kv_transfer.witness import Witness
from segue.errors import FingerprintMismatch, ServingError, TransferFailed, TransferRefused
from segue.handoff import TransportName
from segue.ids import WorkerId
from segue.peering import Introduction, Life, ProcessIdentity, SelfTest
from segue.wire.peer_client import PeerClient

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Peer:
    """A worker that introduced itself."""

    introduction: Introduction
    link: NixlLink | None


class Peers:
    """Owned by one event loop. `agent` and `scratch` are those of this process, None where NIXL cannot run."""

    def __init__(
        self,
        introduction: Introduction,
        agent: NixlAgent | None,
        scratch: Scratch,
        allowed: Sequence[TransportName] = tuple(TransportName),
        *,
        timeout_s: float = 10.0,
        watch: Callable[[ProcessIdentity], ProcessWatch | None] = ProcessWatch.open,
    ) -> None:
        """`introduction` is of this process, without its NIXL endpoint. `allowed` limits what `connect` chooses.

        `watch` gives None for a process that cannot be seen from here.
        """
        self._agent = agent
        self._scratch = scratch
        self._allowed = tuple(allowed)
        self._timeout_s = timeout_s
        self._peers: dict[WorkerId, Peer] = {}
        self._known_at: dict[str, WorkerId] = {}
        self._meeting = asyncio.Lock()
        self._watch = watch
        # A peer that is forgotten is watched on: pages may still wait for its end.
        self._watches: dict[WorkerId, ProcessWatch] = {}
        self._asked_about: set[WorkerId] = set()
        self._told_dead: set[WorkerId] = set()
        self.witness = Witness()
        self.introduction = introduction
        if agent is not None and TransportName.NIXL in allowed:
            self.introduction = replace(introduction, nixl=agent.endpoint)

    def find(self, worker_id: WorkerId) -> Peer:
        """Raises TransferRefused for a worker that has not introduced itself."""
        if (peer := self._peers.get(worker_id)) is None:
            raise TransferRefused(f"worker {worker_id} is not introduced here; connect first")
        return peer

    def take_dead(self) -> set[WorkerId]:
        """Peers that are proven gone, each named once, those included that were forgotten before."""
        ended = {worker_id for worker_id, watch in self._watches.items() if watch.gone()}
        for worker_id in ended:
            del self._watches[worker_id]
        told, self._told_dead = self._told_dead, set()
        return ended | told

    def beside(self, peer: Introduction) -> list[str]:
        """Addresses where a worker answered last that runs where the peer does, and may know whether it is gone."""
        return [
            address
            for address, worker_id in self._known_at.items()
            if worker_id != peer.worker_id and self._peers[worker_id].introduction.process.place == peer.process.place
        ]

    async def inquire(self, peer: Introduction, clients: Iterable[PeerClient]) -> None:
        """Asks other workers whether a peer's process is gone; if one knows that it is, `take_dead` names it.

        Whoever answers judges by its own kernel, and only where that is the peer's, so anybody may be asked. GONE is
        for ever: an answer that comes late is as good. No answer and every other one change nothing.
        """
        # What can be watched from here is known at once, and one question at a time about a peer is enough.
        if peer.worker_id in self._watches or peer.worker_id in self._asked_about:
            return
        self._asked_about.add(peer.worker_id)
        try:
            await asyncio.gather(*(self._ask(peer, client) for client in clients))
        finally:
            self._asked_about.remove(peer.worker_id)

    async def connect(self, client: PeerClient) -> tuple[Peer, TransportName]:
        """Introduces both sides and chooses how the peer will send to this worker.

        Raises FingerprintMismatch or TransferRefused when they do not fit, WorkerUnavailable when it is not reached.
        """
        theirs = await client.connect(self.introduction, self._timeout_s)
        before = self._known_at.get(client.address)
        if before is not None and before != theirs.worker_id:
            # Another process answers where the peer was: what is known of the old one leads nowhere any more.
            await self.forget(before)
        peer = await self.meet(theirs)
        self._known_at[client.address] = theirs.worker_id
        for transport in candidates(self.introduction, theirs):
            if transport in self._allowed and await self._works(transport, client, peer):
                log.info("peer %s at %s sends by %s", theirs.worker_id, client.address, transport.value)
                return peer, transport
        raise TransferRefused(f"none of the allowed transports reaches this worker from {theirs.worker_id}")

    async def meet(self, theirs: Introduction) -> Peer:
        """Takes in a peer's introduction. The same one again changes nothing."""
        if self.introduction.protocol_version != theirs.protocol_version:
            raise FingerprintMismatch(
                f"protocol_version: ours {self.introduction.protocol_version}, theirs {theirs.protocol_version}"
            )
        require_equal_fields(dict(self.introduction.fingerprint), dict(theirs.fingerprint))
        # One at a time: to add a peer twice would cut off what the first one is writing.
        async with self._meeting:
            known = self._peers.get(theirs.worker_id)
            if known is not None and known.introduction == theirs:
                return known
            if known is not None:
                raise TransferRefused(f"worker {theirs.worker_id} introduces itself anew as another process")
            link = None
            if self._agent is not None and theirs.nixl is not None:
                await asyncio.wrap_future(self._agent.connect(theirs.nixl))
                link = NixlLink(self._agent, theirs.nixl)
            peer = self._peers[theirs.worker_id] = Peer(theirs, link)
            if theirs.worker_id not in self._watches and (watch := self._watch(theirs.process)) is not None:
                self._watches[theirs.worker_id] = watch
            return peer

    async def write_self_test(self, test: SelfTest) -> None:
        """A peer wants to see this worker write into its scratch memory."""
        peer = self.find(test.worker_id).introduction
        if self._agent is None or peer.nixl is None:
            raise TransferRefused(f"no NIXL between this worker and {test.worker_id}")
        if test.length != LOT_BYTES or not 0 <= test.offset <= peer.nixl.scratch.bytes - LOT_BYTES:
            raise TransferRefused(f"a self-test of {test.length} bytes at {test.offset} does not fit")
        source = self._scratch.take()
        if source is None:
            raise TransferFailed("no scratch memory is left for a self-test")
        self._scratch.fill(source, test.seed)
        blocks = np.array([[source, test.offset, LOT_BYTES]], dtype=np.int64)
        try:
            await asyncio.wrap_future(self._agent.write_scratch(peer.nixl, blocks, "the self-test"))
        except ServingError:
            self._scratch.give_back(source)
            raise
        self._scratch.give_back(source)

    async def forget(self, worker_id: WorkerId) -> None:
        """Drops a peer that is gone, or that nothing is being written to. Unknown ones are fine."""
        if (peer := self._peers.pop(worker_id, None)) is None:
            return
        self._known_at = {address: known for address, known in self._known_at.items() if known != worker_id}
        if self._agent is not None and peer.introduction.nixl is not None:
            await asyncio.wrap_future(self._agent.disconnect(peer.introduction.nixl.agent))

    async def bury(self, worker_id: WorkerId) -> None:
        """Drops a peer that is proven gone; returns once what had come from it lies where it was written to."""
        await self.forget(worker_id)
        if self._agent is not None:
            await asyncio.wrap_future(self._agent.drain())

    async def _ask(self, peer: Introduction, client: PeerClient) -> None:
        try:
            life = await client.lives(peer.process, self._timeout_s)
        except ServingError as error:
            log.info("whether %s is gone: %s does not say: %s", peer.worker_id, client.address, error.message)
            return
        log.info("whether %s is gone: %s says %s", peer.worker_id, client.address, life.value)
        if life is Life.GONE:
            self._told_dead.add(peer.worker_id)

    async def _works(self, transport: TransportName, client: PeerClient, peer: Peer) -> bool:
        """Whether bytes really arrive. Messages need no test: the peer was just called."""
        if transport is not TransportName.NIXL:
            return True
        assert self._agent is not None
        offset = self._scratch.take()
        if offset is None:
            log.warning("no scratch memory is left to test NIXL with %s", peer.introduction.worker_id)
            return False
        seed = secrets.token_bytes(16)
        self._agent.expect()
        try:
            await client.self_test(SelfTest(self.introduction.worker_id, offset, LOT_BYTES, seed), self._timeout_s)
        except ServingError as error:
            # The write may still come, so the lot stays taken.
            log.warning("NIXL self-test with %s failed: %s", peer.introduction.worker_id, error.message)
            return False
        finally:
            self._agent.unexpect()
        shown = self._scratch.shows(offset, seed)
        self._scratch.give_back(offset)
        if not shown:
            log.warning("NIXL self-test with %s: what arrived is not what was sent", peer.introduction.worker_id)
        return shown
