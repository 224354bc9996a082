"""Asks a silent sender, and whoever may know that it is dead, until nothing of a handoff is in quarantine any more."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from kv_transfer.peers import Peers
from kv_transfer.reservations import Reservations
from segue.errors import ServingError
from segue.handoff import Ticket
from segue.peering import Introduction
from segue.wire.peer_client import PeerClient

_ANSWER_S = 1.0


class Fence:
    """Of one worker. `turn` returns after the next turn of that worker's own clock."""

    def __init__(self, peers: Peers, reservations: Reservations, turn: Callable[[], Awaitable[None]]) -> None:
        self._peers = peers
        self._reservations = reservations
        self._turn = turn

    async def close(self, address: str, peer: Introduction, ticket: Ticket) -> None:
        """Returns once the sender has settled or is proven dead."""
        client = PeerClient(address)
        while any(ticket == waiting for _, waiting in self._reservations.quarantined()):
            with suppress(ServingError):
                await self._settle(client, peer, ticket)
            await self._inquire(client, peer)
            await self._turn()
        await client.close()

    async def _settle(self, client: PeerClient, peer: Introduction, ticket: Ticket) -> None:
        """Only who is still the peer may speak for it."""
        ours = self._peers.introduction
        if (await client.connect(ours, _ANSWER_S)).worker_id == peer.worker_id:
            await client.settle(ours.worker_id, ticket, _ANSWER_S)
            self._reservations.settled(ticket)

    async def _inquire(self, client: PeerClient, peer: Introduction) -> None:
        beside = [PeerClient(address) for address in self._peers.beside(peer) if address != client.address]
        with suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                await self._peers.inquire(peer, [client, *beside])
        for one in beside:
            await one.close()
