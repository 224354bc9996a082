"""A peer's arena written from afar by NIXL."""

from concurrent.futures import Future

from kv_transfer.blocks import Blocks
from kv_transfer.nixl_agent import NixlAgent
from segue.handoff import Ticket, TransportName
from segue.peering import NixlEndpoint


class NixlLink:
    """One peer, reached through this process's agent. A write has settled when the peer's memory shows it."""

    transport = TransportName.NIXL

    def __init__(self, agent: NixlAgent, peer: NixlEndpoint) -> None:
        self._agent = agent
        self._peer = peer

    def write(self, ticket: Ticket, blocks: Blocks, what: str) -> "Future[None]":
        return self._agent.write(self._peer, blocks, f"{ticket}: {what}")
