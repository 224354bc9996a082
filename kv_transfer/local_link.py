"""Sender and receiver in one process: a block is a copy from arena to arena."""

from concurrent.futures import Future

from kv_transfer.blocks import Blocks, check_bounds
from segue.handoff import Ticket, TransportName
from segue.state.regions import Regions


class LocalLink:
    """Copies on the caller's thread; a write has settled when it returns."""

    transport = TransportName.LOCAL

    def __init__(self, source: Regions, target: Regions) -> None:
        """All memory of either worker."""
        self._source = source
        self._target = target

    def write(self, ticket: Ticket, blocks: Blocks, what: str) -> "Future[None]":
        check_bounds(blocks, self._source.bytes, self._target.bytes)
        for source, target, size in blocks.tolist():
            self._target.piece(target, size).copy_(self._source.piece(source, size))
        done: Future[None] = Future()
        done.set_result(None)
        return done
