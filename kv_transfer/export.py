"""From a committed step to what may be read of it: which units hold a chunk, and the digests of a whole state."""

from kv_transfer.digest import digest_contents, zero_tail
from kv_transfer.plan import Piece, TransferPlan
from kv_transfer.sender_words import Chunk, PromptCheckpoint
from segue.batch.request import Request
from segue.batch.reuse import CachedCheckpoint
from segue.handoff import Part, StateDigest, UnitRow
from segue.state.coverage import Coverage
from segue.state.spec import ComponentName
from segue.state.storage import Storage

COVERAGE = Coverage("the export of state", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)


class Export:
    """Reads a storage on behalf of senders. On the thread that computes, between two steps."""

    def __init__(self, storage: Storage, page_tokens: int) -> None:
        COVERAGE.require(storage.layouts)
        self._storage = storage
        self._page_tokens = page_tokens

    def chunk(self, request: Request, sent: int, now: int, plan: TransferPlan) -> Chunk:
        """What is complete now and was not at `sent`. Its bytes do not change until they are released."""
        rows = [_row(request, piece) for piece in plan.chunk(sent, now)]
        if now == plan.terms.prompt_tokens:
            self._clear_tails(rows, now)
        # Writers are not ordered with the streams that computed this.
        self._storage.regions.settle()
        return Chunk(request.handle, sent, now, rows)

    def digests(self, request: Request, plan: TransferPlan) -> tuple[StateDigest, ...]:
        """Of the whole state that a plan sends."""
        return digest_contents(
            self._storage, [_row(request, piece) for piece in plan.state()], plan.contents(Part.STATE)
        )

    def checkpoint(self, found: CachedCheckpoint, plan: TransferPlan, *, verify: bool) -> PromptCheckpoint | None:
        """What a plan sends after the state; None when the cached checkpoint is not that of the plan."""
        if found.depth != plan.terms.checkpoint:
            return None
        rows = []
        for piece in plan.checkpoint():
            units: tuple[int | None, ...] = (found.slot,)
            if piece.component is ComponentName.WINDOW:
                units = tuple(found.window[index] for index in range(piece.first, piece.stop))
            rows.append(UnitRow(piece.part, piece.component, piece.first, units))
        digests = digest_contents(self._storage, rows, plan.contents(Part.CHECKPOINT)) if verify else ()
        return PromptCheckpoint(found.depth, rows, digests)

    def _clear_tails(self, rows: list[UnitRow], depth: int) -> None:
        """What lies past the end of the state in its last pages may be left over from another tenant."""
        last = (depth - 1) // self._page_tokens
        for row in rows:
            if row.component is not ComponentName.RECURRENT and row.stop == last + 1:
                page = row.units[-1]
                assert page is not None, "the last page is never out of the window"
                zero_tail(self._storage, row.component, page, depth - last * self._page_tokens)


def _row(request: Request, piece: Piece) -> UnitRow:
    tables = request.tables
    assert tables is not None, f"request {request.request_id} has no state to send"
    match piece.component:
        case ComponentName.FULL:
            units: tuple[int | None, ...] = tuple(tables.full[piece.first : piece.stop])
        case ComponentName.WINDOW:
            units = tuple(tables.window[piece.first : piece.stop])
        case ComponentName.RECURRENT:
            units = (tables.slot,)
    return UnitRow(piece.part, piece.component, piece.first, units)
