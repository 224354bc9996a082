"""A receiver at work: grants units for a plan, takes bytes that come as messages, verifies what has arrived."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_transfer.arena_map import map_arena, side_of_peer
from kv_transfer.block_messages import put_message
from kv_transfer.digest import digest_contents, require_equal_copies, require_equal_digests
from kv_transfer.plan import Side, TransferPlan, make_plan
from kv_transfer.reservations import Reservations
from segue.errors import DigestMismatch
from segue.handoff import BlockBytes, Grant, Part, StateDigest, Terms, UnitRow
from segue.ids import RequestId, WorkerId
from segue.state.storage import Storage


@dataclass(frozen=True, slots=True)
class Incoming:
    """A grant together with the plan behind it."""

    peer: WorkerId
    grant: Grant
    plan: TransferPlan


class Receiver:
    """State that comes in from peers. Owned by the thread that owns pools and storage."""

    def __init__(self, reservations: Reservations, storage: Storage, side: Side) -> None:
        self.reservations = reservations
        self._storage = storage
        self._side = side
        self._arena_map = map_arena(storage)

    def grant(
        self,
        peer: WorkerId,
        tp_size: int,
        request_id: RequestId,
        attempt: int,
        ask: int,
        terms: Terms,
        *,
        headroom_tokens: int,
    ) -> Incoming:
        """Promises units for the whole prompt and for so many tokens after it to a peer of `tp_size` ranks.

        Raises PoolExhausted (wait, nothing was taken) or TransferRefused (it can never be).
        """
        plan = make_plan(terms, side_of_peer(self._side, tp_size), self._side)
        # The peer's writes are not ordered with the streams that may still read what these units were before.
        self._storage.regions.settle()
        ticket, rows = self.reservations.grant(peer, request_id, attempt, plan.room(headroom_tokens))
        grant = Grant(ticket, ask, terms, plan.digest(), self.reservations.lease_s, rows)
        return Incoming(peer, grant, plan)

    def put(self, message: BlockBytes) -> bool:
        """Writes bytes that came as a message; False when their ticket may not write (any more) and they are dropped.

        Raises TransferFailed or TransferRefused as `put_message` does.
        """
        rows = self.reservations.may_write(message.ticket)
        if not rows:
            return False
        put_message(self._storage.regions, self._arena_map, message, rows)
        return True

    def accept(self, incoming: Incoming, part: Part, digests: Sequence[StateDigest]) -> tuple[UnitRow, ...] | None:
        """The sender says that a part is complete. Its units, HELD from now on; None when the message is no news.

        Raises DigestMismatch; the promise is over then, and the sender must be told to withdraw. Without digests
        nothing is verified.
        """
        ticket = incoming.grant.ticket
        if not self.reservations.arrived(ticket, part):
            return None
        if digests:
            contents = incoming.plan.contents(part)
            rows = [row for row in incoming.grant.rows if row.part is part]
            try:
                ours = digest_contents(self._storage, rows, contents)
                require_equal_digests(ours, digests, contents, ticket, incoming.peer)
                require_equal_copies(self._storage, rows, contents, ticket, incoming.peer)
            except DigestMismatch:
                self.reservations.cancel(ticket)
                raise
        return self.reservations.take(ticket, part)
