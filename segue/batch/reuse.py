"""What requests use of the prefix tree and give to it; pure policy.

Asked by holdings, so that they need not know how a tree looks. The retention floor is computed here and nowhere else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias
from weakref import WeakKeyDictionary

from segue.batch.cache_tally import CacheTally
from segue.batch.lifecycle import Phase
from segue.batch.request import Request
from segue.cache.keys import PageKeys
from segue.cache.match import Match
from segue.cache.shape import Strategy
from segue.cache.tree import PrefixTree
from segue.ids import Page, Slot
from segue.state.spec import ComponentName
from segue.state.tables import StateTables

Spare: TypeAlias = Callable[[Request], int]
"""Tells how many full pages of others a request may come to pin; to know that is a look at each that runs."""


class Due(Enum):
    """Whether a step leaves a checkpoint."""

    NO = auto()
    IF_FREE = auto()
    """A slot that is free anyway is used; nothing is evicted for it."""
    YES = auto()


@dataclass(frozen=True, slots=True)
class CachedCheckpoint:
    """The state after `depth` tokens: its slot, and by index the window pages that a continuation reads."""

    depth: int
    slot: Slot
    window: dict[int, Page]


class Reuse:
    """One worker's prefix tree as its requests see it. `retain` False gives up the retention floor (to measure it)."""

    def __init__(self, tree: PrefixTree, *, retain: bool = True) -> None:
        self.tree = tree
        self.shape = tree.shape
        self.tally = CacheTally(tree.shape.page_tokens)
        self._retain = retain
        # Who waits for whose prefill, and until which depth.
        self._waits: WeakKeyDictionary[Request, tuple[Request, int]] = WeakKeyDictionary()

    def keys(self, request: Request, pages: int) -> list[bytes]:
        """Keys of at least the request's first `pages` pages."""
        if request.keys is None:
            request.keys = PageKeys(self.shape.page_tokens, request.token_bytes)
        return request.keys.first(pages)

    def match(self, request: Request) -> Match:
        """What is cached of all that the request knows and may reuse."""
        tokens = request.reusable_max + 1
        return self.tree.match(request.cache_salt, self.keys(request, tokens // self.shape.page_tokens), tokens)

    def awaits(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether a queued request should wait: a running one is about to publish more of its prefix than is cached.

        The running one leaves a checkpoint where the two part.
        """
        if (waits := self._waits.pop(request, None)) is None or not _is_short_of(*waits):
            waits = next(self._promising(request, running), None)
        if waits is None:
            return False
        self._waits[request] = waits
        return True

    def _promising(self, request: Request, running: Iterable[Request]) -> Iterator[tuple[Request, int]]:
        if self.shape.recurrent and self.shape.strategy is not Strategy.EXTRA_BUFFER:
            return
        resumable: int | None = None
        for other in running:
            if other.phase is not Phase.EXTENDING or other.cache_salt != request.cache_salt:
                continue
            shared = self._shared_depth(request, other)
            if not _is_short_of(other, shared):
                continue
            if resumable is None:
                resumable = self.match(request).resumable_pages * self.shape.page_tokens
            if shared > resumable:
                if self.shape.recurrent:
                    other.stops.add(shared)
                yield other, shared

    def _shared_depth(self, request: Request, other: Request) -> int:
        """How far the request could be resumed if the other published all that it knows."""
        size = self.shape.page_tokens
        # The state at the other's own end is not kept: its last checkpoint is the deepest that both can use.
        pages = min(request.reusable_max // size, (other.known_len - 1) // size)
        mine, theirs = self.keys(request, pages), self.keys(other, pages)
        common = next((page for page in range(pages) if mine[page] != theirs[page]), pages)
        return self.shape.grid_below(common * size) if self.shape.recurrent else common * size

    def begin(self, request: Request, tables: StateTables) -> Match:
        """Starts the request at its resumable depth, with the cached pages in its tables.

        The match's checkpoint, if any, is to be copied.
        """
        match = self.match(request)
        nodes = match.resumable
        request.lease = self.tree.acquire(match)
        request.computed = len(nodes) * self.shape.page_tokens
        request.stops = self._stops(request, match)
        if not nodes:
            return match
        if self.shape.full:
            tables.full = [Page(node.full) for node in nodes if node.full is not None]
        if self.shape.window is not None:
            span = self.shape.window_span(len(nodes))
            live = [Page(node.window) for node in nodes[span.start :] if node.window is not None]
            tables.window = [*[None] * span.start, *live]
            tables.window_first = span.start
            assert len(tables.window) == len(nodes), "a match has its window"
        assert match.checkpoint or not self.shape.recurrent, "a match of recurrent state has a checkpoint"
        return match

    def count(self, request: Request, match: Match) -> None:
        """What a request found where it starts. To be computed again is no use of the cache, whatever is found then."""
        if not request.retractions:
            request.cached_tokens = min(request.computed, request.prompt_len)
            self.tally.started(request.reusable_max + 1, request.computed, match.limited_by)

    def hold(self, request: Request) -> int:
        """Pins what is cached of a prompt whose state comes from elsewhere: how many tokens of unbroken full pages."""
        match = self.match(request)
        request.lease = self.tree.acquire_path(match)
        return len(match.path) * self.shape.page_tokens if self.shape.full else 0

    def reopen(self, request: Request) -> None:
        """A request that was taken off the device is back on pages of its own, and may publish them."""
        assert request.lease is None
        request.lease = self.tree.begin(request.cache_salt)

    def keep_deepest(self, request: Request) -> None:
        """The request runs now, and is matched at the deepest checkpoint that its prompt has here."""
        assert request.lease is not None
        self.tree.keep_deepest(request.lease)

    def held_pages(self, request: Request) -> list[Page]:
        """The full pages that `hold` has pinned, first page first."""
        assert request.lease is not None
        anchor = request.lease.anchor
        return [Page(node.full) for node in reversed(anchor.up(anchor.pages)) if node.full is not None]

    def offered_checkpoint(self, request: Request) -> int | None:
        """Depth of the checkpoint that computing the request's prompt will leave; None when it leaves none."""
        if not self.shape.recurrent or self.shape.strategy is not Strategy.EXTRA_BUFFER:
            return None
        return self.shape.prompt_checkpoint(request.known_len) or None

    def wanted_checkpoint(self, request: Request, offered: int | None) -> int | None:
        """Depth of the prompt checkpoint that is to follow a state; None when there is none, or it is here already."""
        if offered is None or not self.shape.recurrent or request.lease is None:
            return None
        anchor, pages = request.lease.anchor, offered // self.shape.page_tokens
        here = anchor.pages >= pages and anchor.up(anchor.pages - pages + 1)[-1].checkpoint is not None
        return None if here else offered

    def prompt_checkpoint(self, request: Request) -> CachedCheckpoint | None:
        """The newest checkpoint on the request's path, which it pins from now on if it did not."""
        if request.lease is None or request.tables is None:
            return None
        # Whoever retains nothing sends it all the same.
        self.tree.keep_deepest(request.lease)
        self.tally.retains(request.handle, self.retained_pages(request, request.tables.swept[0]))
        if (kept := request.lease.kept) is None or kept.checkpoint is None:
            return None
        window = {node.pages - 1: Page(node.window) for node in request.lease.kept_window if node.window is not None}
        return CachedCheckpoint(kept.pages * self.shape.page_tokens, Slot(kept.checkpoint), window)

    def _stops(self, request: Request, match: Match) -> set[int]:
        """Depths at which extending the request must pause for a checkpoint."""
        if not self.shape.recurrent or self.shape.strategy is not Strategy.EXTRA_BUFFER:
            return set()
        known = request.known_len
        full_depth = len(match.path) * self.shape.page_tokens
        stops = {self.shape.prompt_checkpoint(known), self.shape.branch(full_depth, known, request.computed)}
        return {stop for stop in stops if stop is not None and stop > request.computed}

    def due(self, request: Request, depth: int, *, decode: bool) -> Due:
        """Whether the step that brings the request to `depth` leaves a checkpoint there."""
        if not self.shape.recurrent or request.lease is None:
            return Due.NO
        if self.shape.strategy is Strategy.NO_BUFFER:
            return Due.YES if not decode and depth == request.known_len else Due.NO
        if decode:
            return Due.YES if depth % self.shape.interval == 0 else Due.NO
        if depth in request.stops:
            return Due.YES
        # The state at the prompt's own end is donated, if at all.
        return Due.IF_FREE if depth % self.shape.grid == 0 and depth < request.known_len else Due.NO

    def publish(self, request: Request, depth: int, spare: Spare) -> None:
        """Gives whole pages of the first `depth` positions to the tree, where `spare` suffices (PrefixTree.publish)."""
        assert request.lease is not None
        assert request.tables is not None
        pages = depth // self.shape.page_tokens
        keys = self.keys(request, pages)
        room = _room(request, keys, pages, spare)
        self.tree.publish(request.lease, keys, request.tables, pages, room)

    def publish_checkpoint(self, request: Request, depth: int, slot: Slot, spare: Spare) -> bool:
        """Publishes the state after exactly `depth` positions; False when `slot` stays the request's."""
        assert request.lease is not None
        assert request.tables is not None
        pages, rest = divmod(depth, self.shape.page_tokens)
        assert rest == 0, f"a checkpoint at {depth} is on no page edge"
        keys = self.keys(request, pages)
        room = _room(request, keys, pages, spare)
        return self.tree.publish_checkpoint(request.lease, keys, request.tables, pages, slot, room)

    def may_donate(self, request: Request) -> bool:
        """Whether the working slot of a request that ends is a state that a later request can be resumed from."""
        assert request.tables is not None
        depth = request.computed
        grid = 1 if self.shape.strategy is Strategy.NO_BUFFER else self.shape.grid
        if request.tables.slot is None or request.overtaken:
            return False
        return 0 < depth <= request.known_len and depth % grid == 0

    def floor(self, request: Request) -> int | None:
        """The retention floor f = c* - W of STATE.md section 4."""
        if request.lease is None:
            return None
        if not self._retain:
            self.tree.drop_floor(request.lease)
            return None
        if request.expected is not None and self.shape.window:
            return request.expected - self.shape.window
        return self.tree.floor(request.lease)

    def drop_floor(self, request: Request) -> bool:
        """Memory is short: nothing below the tail is retained until the next checkpoint. False when nothing was."""
        if request.lease is None or request.lease.kept is None or request.pinned:
            return False
        self.tree.drop_floor(request.lease)
        self.tally.floor_dropped()
        return True

    def retained_pages(self, request: Request, below: int) -> int:
        """Window pages below page `below` that stay for a later match: in the request's table, or pinned in the tree.

        The table has been swept: it has no other pages down there.
        """
        assert request.tables is not None
        window, lease = request.tables.window, request.lease
        pages = {index for index in range(request.tables.window_first, below) if window[index] is not None}
        if lease is not None:
            pages.update(node.pages - 1 for node in lease.kept_window if node.pages <= below)
        return len(pages)

    def check_retained(self, request: Request, below: int) -> None:
        """Asserts that what is counted of those is so."""
        assert self.tally.retained(request.handle) == self.retained_pages(request, below)

    def uses(self, request: Request, index: int) -> bool:
        """Whether window page `index` of the request's table is the tree's."""
        return request.lease is not None and index in request.lease.used

    def unuse(self, request: Request, index: int) -> None:
        """That page leaves the request's table."""
        assert request.lease is not None
        self.tree.unuse_window(request.lease, index)

    def end(self, request: Request) -> None:
        """The request uses nothing of the tree any more."""
        assert request.lease is not None
        self.tree.release(request.lease)
        request.lease = None
        self.tally.retains(request.handle, 0)

    def evict(self, component: ComponentName, count: int) -> int:
        """Frees at least `count` cached units, or as many as can go; returns how many."""
        return self.tree.forest.evict(component, count)


def _room(request: Request, keys: Sequence[bytes], pages: int, spare: Spare) -> int:
    """How many pages of others may come to be pinned, asked for only where the tree has some."""
    assert request.lease is not None
    anchor = request.lease.anchor
    return spare(request) if anchor.pages < pages and keys[anchor.pages] in anchor.children else 0


def _is_short_of(request: Request, depth: int) -> bool:
    """Whether the request is still on its way to `depth`."""
    return request.phase is Phase.EXTENDING and request.computed < depth <= request.known_len
