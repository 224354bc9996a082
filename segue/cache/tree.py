"""The prefix tree of one worker: match, use, publish; STATE.md sections 3 and 4. Pure policy, knows no tensors.

An edge is one page of tokens, so no node is ever split. What a request publishes moves from it to the tree and stays in
its table under a pin. A page that the tree has already stays the request's own, and ends with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from segue.cache.forest import Forest
from segue.cache.lease import Lease
from segue.cache.match import Match
from segue.cache.node import Node
from segue.cache.shape import COVERAGE, CacheShape
from segue.ids import Slot
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName
from segue.state.tables import StateTables


@dataclass(slots=True)
class CacheCounts:
    """What happened so far; `evicted` ones are counted by the forest."""

    taken: int = 0
    duplicates: int = 0
    skipped: int = 0
    resumed: int = 0


class PrefixTree:
    """Every method is called by the one engine thread, between steps."""

    def __init__(
        self, shape: CacheShape, pools: Mapping[ComponentName, Pool], release_slot: Callable[[Slot], None]
    ) -> None:
        COVERAGE.require(pools)
        self.shape = shape
        self.counts = CacheCounts()
        self.forest = Forest(shape, pools, release_slot)
        self._pools = pools
        self._leases: set[Lease] = set()

    @property
    def leases(self) -> frozenset[Lease]:
        return frozenset(self._leases)

    # Match

    def match(self, salt: str, keys: Sequence[bytes], tokens: int) -> Match:
        """What is cached of a sequence of `tokens` known tokens, `keys` being those of its whole pages.

        Changes nothing. At least one token is left to compute.
        """
        path: list[Node] = []
        whole = tokens // self.shape.page_tokens
        node = self.forest.roots.get(salt)
        if node is not None:
            children = node.children
            for key in keys if len(keys) == whole else keys[:whole]:
                child = children.get(key)
                if child is None:
                    break
                path.append(child)
                children = child.children
        limit = min(len(path), (tokens - 1) // self.shape.page_tokens)
        resumable = self._resumable(path, limit)
        return Match(salt, tuple(path), resumable, self._limit(resumable, limit, tokens))

    def _resumable(self, path: Sequence[Node], limit: int) -> int:
        """How many of the first `limit` nodes can be continued after: the joint maximum over the components."""
        if self.shape.recurrent:
            # A cached checkpoint has its window: forest.set_checkpoint and eviction see to it.
            return next((pages for pages in range(limit, 0, -1) if path[pages - 1].checkpoint is not None), 0)
        if self.shape.window is None:
            return limit
        best = unbroken = 0
        for pages in range(1, limit + 1):
            if path[pages - 1].window is None:
                unbroken = pages
            if unbroken <= self.shape.window_span(pages).start:
                best = pages
        return best

    def _limit(self, resumable: int, limit: int, tokens: int) -> ComponentName | None:
        size = self.shape.page_tokens
        if self.shape.recurrent and resumable * size < self.shape.grid_below(limit * size):
            return ComponentName.RECURRENT
        if not self.shape.recurrent and resumable < limit:
            return ComponentName.WINDOW
        if limit < (tokens - 1) // size:
            return next(name for name in ComponentName if name in self._pools)
        return None

    # Use

    def acquire(self, match: Match) -> Lease:
        """Uses a match down to its resumable depth: nothing that a continuation from there reads can go."""
        lease = self._lease(match.salt, match.resumable)
        if not match.resumable_pages:
            return lease
        end = match.resumable[-1]
        self.forest.touch(end, resumed=True)
        for node in self.forest.window_nodes(end):
            self._use_window(lease, node)
        if self.shape.recurrent:
            self.counts.resumed += 1
            self._keep(lease, end)
        return lease

    def acquire_path(self, match: Match) -> Lease:
        """Uses the unbroken full pages of a match, for a request whose other state comes from elsewhere."""
        lease = self._lease(match.salt, match.path)
        if match.path:
            self.forest.touch(match.path[-1], resumed=False)
        return lease

    def begin(self, salt: str) -> Lease:
        """For a request that uses nothing of the tree yet."""
        return self._lease(salt, ())

    def keep_deepest(self, lease: Lease) -> None:
        """The request runs now: the deepest checkpoint on its path is what it can be matched at."""
        if not self.shape.recurrent or lease.kept is not None:
            return
        for node in lease.anchor.up(lease.anchor.pages):
            if node.checkpoint is not None:
                self._keep(lease, node)
                return

    def release(self, lease: Lease) -> None:
        """The request is over. What it published stays until memory is short."""
        assert lease in self._leases, "a lease ends once"
        self._leases.remove(lease)
        self._unkeep(lease)
        # Of window pages that are of the same age the shallowest go first: the deepest serve the next turn.
        for index in sorted(lease.used):
            self.unuse_window(lease, index)
        self.forest.unpin_path(lease.anchor)

    def unuse_window(self, lease: Lease, index: int) -> None:
        """Page `index` of the window leaves the request's table."""
        self.forest.unpin_window([lease.used.pop(index)])

    # Publishing

    def publish(self, lease: Lease, keys: Sequence[bytes], tables: StateTables, pages: int, spare: int) -> bool:
        """Moves what the request computed of its first `pages` pages to the tree.

        Where the tree has pages of the same tokens already, the request comes to pin those beside its own: at most
        `spare` more. False, and nothing has changed, where that does not suffice or the tree had all of them. With
        recurrent state window pages are published with checkpoints only.
        """
        windows = not self.shape.recurrent and self.shape.window is not None
        if not self.shape.full and not windows:
            return True
        node = self._reach(lease, keys, tables, pages, spare, wanted=windows)
        if node is None:
            return False
        if windows:
            self._publish_windows(lease, tables, node.up(pages - tables.window_first))
        return True

    def publish_checkpoint(
        self, lease: Lease, keys: Sequence[bytes], tables: StateTables, pages: int, slot: Slot, spare: int
    ) -> bool:
        """Publishes the first `pages` pages and the state after exactly them, in `slot`, which the request holds.

        False when the slot is still the request's: the tree has that checkpoint, the request has not all of a page of
        its window, or pinning others' pages would need more than `spare`.
        """
        node = self._reach(lease, keys, tables, pages, spare, wanted=True)
        if node is None:
            self.counts.skipped += 1
            return False
        taken = node.checkpoint is None
        if taken and not all(self._whole(tables, one) for one in self.forest.window_nodes(node) if one.window is None):
            self.counts.skipped += 1
            return False
        if taken:
            self._publish_windows(lease, tables, self.forest.window_nodes(node))
            self.forest.set_checkpoint(node, slot)
            self.counts.taken += 1
        elif node is not lease.kept:
            self.counts.duplicates += 1
        if lease.kept is None or lease.kept.pages < node.pages:
            self._keep(lease, node)
        return taken

    def _reach(
        self, lease: Lease, keys: Sequence[bytes], tables: StateTables, pages: int, spare: int, *, wanted: bool
    ) -> Node | None:
        """The node of page `pages - 1`, made with those above it out of the request's pages where the tree has none.

        The request's anchor moves there, unless nothing was missing and the node itself is not `wanted`.
        """
        node, foreign = lease.anchor, 0
        if pages <= node.pages:
            return node.up(node.pages - pages + 1)[-1] if pages else None
        index = node.pages
        while index < pages and (child := node.children.get(keys[index])) is not None:
            foreign += child.full is not None and child.full != tables.full[index]
            node = child
            index += 1
        if (index == pages and not wanted) or foreign > spare:
            return None
        while index < pages:
            node = self.forest.add(node, keys[index], tables.full[index] if self.shape.full else None)
            index += 1
        lease.foreign += foreign
        self.forest.pin_path(node)
        self.forest.unpin_path(lease.anchor)
        lease.anchor = node
        return node

    def _publish_windows(self, lease: Lease, tables: StateTables, nodes: Sequence[Node]) -> None:
        """Gives nodes that have no window page the request's own, which stays in its table."""
        pool = self._pools[ComponentName.WINDOW] if nodes else None
        for node in nodes:
            page = tables.window[node.pages - 1]
            if node.window is not None or page is None or not self._whole(tables, node):
                continue
            assert pool is not None
            assert pool.owner(page) is Owner.HELD, f"window page {page} is {pool.owner(page).name.lower()}"
            self.forest.set_window(node, page)
            self._use_window(lease, node)

    def _whole(self, tables: StateTables, node: Node) -> bool:
        """Whether the request has all that the window page of a node is to hold: others may read more of it."""
        return (node.pages - 1) * self.shape.page_tokens >= tables.window_from

    # The newest checkpoint a request can be matched at

    def floor(self, lease: Lease) -> int | None:
        """The retention floor f = c* - W, None when nothing has to be retained below the tail."""
        if lease.kept is None or not self.shape.window:
            return None
        return lease.kept.pages * self.shape.page_tokens - self.shape.window

    def drop_floor(self, lease: Lease) -> None:
        """Memory is short: what only a later match would need is plain cache until the next checkpoint."""
        self._unkeep(lease)

    def _keep(self, lease: Lease, node: Node) -> None:
        assert node.checkpoint is not None
        window = tuple(self.forest.window_nodes(node))
        self.forest.pin_checkpoint(node)
        self.forest.pin_window(window)
        self._unkeep(lease)
        lease.kept, lease.kept_window = node, window

    def _unkeep(self, lease: Lease) -> None:
        if lease.kept is not None:
            kept, window = lease.kept, lease.kept_window
            lease.kept, lease.kept_window = None, ()
            self.forest.unpin_window(window)
            self.forest.unpin_checkpoint(kept)

    def _use_window(self, lease: Lease, node: Node) -> None:
        assert node.pages - 1 not in lease.used
        self.forest.pin_window([node])
        lease.used[node.pages - 1] = node

    def _lease(self, salt: str, nodes: Sequence[Node]) -> Lease:
        anchor = nodes[-1] if nodes else self.forest.root(salt)
        assert not nodes or anchor.attached, "the match is older than the last eviction"
        lease = Lease(anchor)
        self.forest.pin_path(anchor)
        self._leases.add(lease)
        return lease
