"""A sender at work: cuts a request's pages into writes and posts what policy allows; owned by one thread."""

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from kv_transfer.blocks import Blocks, Places, batches, cut_blocks, name_piece
from kv_transfer.plan import Piece, TransferPlan
from kv_transfer.sending import Sending, SendingEvent
from kv_transfer.transport import Link
from segue.errors import ServingError, TransferRefused
from segue.handoff import Grant, UnitRow
from segue.peering import ArenaMap

# One write blocks the transport's thread while it is posted, so a long prompt goes in several.
WRITE_BYTES_MAX = 32 << 20


@dataclass(frozen=True, slots=True)
class Push:
    """One write and the way it takes."""

    link: Link
    blocks: Blocks
    what: str


class Outgoing:
    """One granted request: turns its pieces into pushes. Writes nothing itself."""

    def __init__(self, grant: Grant, plan: TransferPlan, link: Link, ours: ArenaMap, theirs: ArenaMap) -> None:
        """Raises TransferRefused when the receiver computed another plan, or granted other pages than it needs."""
        if plan.digest() != grant.plan_digest:
            raise TransferRefused(
                f"{grant.ticket}: the receiver's plan is {grant.plan_digest}, ours {plan.digest()} for {grant.terms}"
            )
        self.ticket = grant.ticket
        self.plan = plan
        self._link = link
        self._ours = ours
        self._theirs = theirs
        self._target = Places(grant.rows)
        # Before the first byte: every page that will ever travel has a place.
        for piece in (*plan.state(), *plan.checkpoint()):
            self._target.units(piece, theirs)

    def pushes(self, pieces: Sequence[Piece], rows: Sequence[UnitRow]) -> list[Push]:
        """Writes for some pieces, whose source pages stand in `rows`. Their bytes must be complete by now."""
        blocks = cut_blocks(pieces, self.plan.runs, (Places(rows), self._ours), (self._target, self._theirs))
        what = ", ".join(name_piece(piece) for piece in pieces)
        return [Push(self._link, batch, what) for batch in batches(blocks, WRITE_BYTES_MAX)]


class Sender:
    """Posts the pushes of one peer. `wake` is called from any thread when `pump` has something to do."""

    def __init__(self, sending: Sending[Push], wake: Callable[[], None]) -> None:
        self.sending = sending
        self._wake = wake
        self._ended: queue.SimpleQueue[tuple[int, ServingError | None]] = queue.SimpleQueue()

    def pump(self) -> list[SendingEvent]:
        """Takes in what has settled, posts what may be posted, and returns what there is to tell the peer."""
        while True:
            self._take_ended()
            posts = self.sending.posts()
            if not posts:
                return self.sending.take_events()
            for post in posts:
                done = post.payload.link.write(post.ticket, post.payload.blocks, post.payload.what)
                done.add_done_callback(partial(self._on_end, post.number))

    def _take_ended(self) -> None:
        while not self._ended.empty():
            number, error = self._ended.get()
            if error is None:
                self.sending.settled(number)
            else:
                self.sending.failed(number, error)

    def _on_end(self, number: int, done: "Future[None]") -> None:
        error = done.exception()
        assert error is None or isinstance(error, ServingError), error
        self._ended.put((number, error))
        self._wake()
