"""How blocks reach a peer's arena: the one seam that every transport fits; chooses no transport itself."""

from concurrent.futures import Future
from typing import Protocol

from kv_transfer.blocks import Blocks
from segue.handoff import Ticket, TransportName


class Link(Protocol):
    """A way into one peer's arena. Any thread may call it."""

    @property
    def transport(self) -> TransportName: ...

    def write(self, ticket: Ticket, blocks: Blocks, what: str) -> "Future[None]":
        """Posts one write of source bytes that are complete already; `what` names them in errors.

        The future ends when the write has settled: with a result once every byte is in the peer's memory (for a
        transport whose bytes are ordered with its messages: once nothing can overtake them), with TransferFailed or
        PeerLost when no more of it will arrive. It never ends while bytes may still arrive, however late it is.
        """
