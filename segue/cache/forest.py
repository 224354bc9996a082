"""The nodes of all prefix trees: pins, needs and ownership kept exact, and the order in which things are evicted.

Knows no requests and decides nothing about what to cache. A full page leaves from a leaf only, with all that is on it;
a checkpoint leaves together with the window pages that only it needs; pinned things never leave.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from segue.cache.eviction import EvictionOrder, Key
from segue.cache.node import Node
from segue.cache.shape import CacheShape
from segue.ids import Slot
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName


class Forest:
    """One tree per isolation root. `release_slot` is told of every checkpoint slot on its way to the pool."""

    def __init__(
        self, shape: CacheShape, pools: Mapping[ComponentName, Pool], release_slot: Callable[[Slot], None]
    ) -> None:
        self.shape = shape
        self.evicted_checkpoints = 0
        self._pools = pools
        self._release_slot = release_slot
        self._roots: dict[str, Node] = {}
        self._clock = 0
        self._leaves = EvictionOrder(_leaf_key)
        self._checkpoints = EvictionOrder(_checkpoint_key)
        self._windows = EvictionOrder(_window_key)

    @property
    def roots(self) -> Mapping[str, Node]:
        return self._roots

    def root(self, salt: str) -> Node:
        """The root of that isolation, made when it is not there; it must be pinned or get children at once."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = Node(None, salt.encode(), 0)
        return root

    # Growth

    def add(self, parent: Node, key: bytes, full: int | None) -> Node:
        """A new node under `parent`; `full` was held by a request and belongs to the tree from now on."""
        assert key not in parent.children
        assert (full is not None) == self.shape.full
        node = Node(parent, key, parent.pages + 1)
        parent.children[key] = node
        if full is not None:
            self._take_over(ComponentName.FULL, full)
            node.full = full
        node.used = self._clock
        return node

    def set_window(self, node: Node, page: int) -> None:
        """The node's window page, held by a request so far."""
        assert node.window is None
        self._take_over(ComponentName.WINDOW, page)
        node.window = page

    def set_checkpoint(self, node: Node, slot: int) -> None:
        """The state after exactly the node's last token, held by a request so far."""
        assert node.checkpoint is None
        self._take_over(ComponentName.RECURRENT, slot)
        node.checkpoint = slot
        node.checkpoint_used, node.checkpoint_hit = self._clock, False
        for needed in self.window_nodes(node):
            assert needed.window is not None, "a checkpoint without its window cannot be resumed"
            needed.window_needs += 1
        self._checkpoints.offer(node)

    def window_nodes(self, node: Node) -> list[Node]:
        """The nodes whose window pages a continuation after this one reads, deepest first."""
        return node.up(len(self.shape.window_span(node.pages)))

    # Use

    def touch(self, node: Node, *, resumed: bool) -> None:
        """The node was matched. What lies above it was too, which counts when it becomes a leaf."""
        self._clock += 1
        node.used, node.hit = self._clock, True
        if resumed and self.shape.recurrent:
            node.checkpoint_used, node.checkpoint_hit = self._clock, True
        if resumed and not self.shape.recurrent:
            for needed in self.window_nodes(node):
                needed.used, needed.hit = self._clock, True

    def pin_path(self, node: Node) -> None:
        node.path_pins += 1

    def unpin_path(self, node: Node) -> None:
        assert node.path_pins > 0
        node.path_pins -= 1
        self._settle(node)

    def pin_window(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            assert node.window is not None, "nothing to pin"
            node.window_pins += 1

    def unpin_window(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            assert node.window_pins > 0
            node.window_pins -= 1
            self._drop_unneeded_window(node)
            self._settle(node)

    def pin_checkpoint(self, node: Node) -> None:
        assert node.checkpoint is not None, "nothing to pin"
        node.checkpoint_pins += 1

    def unpin_checkpoint(self, node: Node) -> None:
        assert node.checkpoint_pins > 0
        node.checkpoint_pins -= 1
        self._settle(node)

    # Eviction

    def check_orders(self, nodes: Collection[Node]) -> None:
        """Asserts that whatever can be evicted waits for its turn; `nodes` are all below the roots."""
        self._leaves.check(nodes if self.shape.full else ())
        self._checkpoints.check(nodes)
        self._windows.check(() if self.shape.recurrent else nodes)

    def evict(self, component: ComponentName, count: int) -> int:
        """Frees at least `count` units of one component, or as many as can go; returns how many."""
        pool = self._pools[component]
        wanted = pool.free_count + count
        before = pool.free_count
        match component:
            case ComponentName.FULL:
                while pool.free_count < wanted and (node := self._leaves.take()) is not None:
                    self._remove(node)
            case ComponentName.WINDOW if not self.shape.recurrent:
                while pool.free_count < wanted and (node := self._windows.take()) is not None:
                    self._free_window(node)
                    self._prune(node)
            case ComponentName.WINDOW:
                self._evict_checkpoints(pool, wanted, self._frees_window)
            case ComponentName.RECURRENT:
                self._evict_checkpoints(pool, wanted, lambda node: True)
        return pool.free_count - before

    def _evict_checkpoints(self, pool: Pool, wanted: int, useful: Callable[[Node], bool]) -> None:
        passed_over = []
        while pool.free_count < wanted and (node := self._checkpoints.take()) is not None:
            if useful(node):
                self._drop_checkpoint(node)
                self._prune(node)
            else:
                passed_over.append(node)
        for node in passed_over:
            self._checkpoints.offer(node)

    def _frees_window(self, node: Node) -> bool:
        """Whether the checkpoint's end may free a window page, now or once others that share its pages are gone."""
        return any(needed.window_pins == 0 for needed in self.window_nodes(node))

    def _remove(self, leaf: Node) -> None:
        """Takes a leaf out with all that is on it."""
        assert not leaf.children
        assert not leaf.pinned
        parent = leaf.parent
        assert parent is not None
        if leaf.checkpoint is not None:
            self._drop_checkpoint(leaf)
        if leaf.window is not None:
            self._free_window(leaf)
        if leaf.full is not None:
            self._pools[ComponentName.FULL].free([leaf.full], Owner.CACHED)
            leaf.full = None
        self._detach(leaf)
        # A match of the leaf was one of what lies above.
        parent.used, parent.hit = max(parent.used, leaf.used), parent.hit or leaf.hit
        self._settle(parent)

    def _drop_checkpoint(self, node: Node) -> None:
        assert node.checkpoint is not None
        assert not node.checkpoint_pins
        self._release_slot(Slot(node.checkpoint))
        self._pools[ComponentName.RECURRENT].free([node.checkpoint], Owner.CACHED)
        node.checkpoint = None
        self.evicted_checkpoints += 1
        for needed in self.window_nodes(node):
            needed.window_needs -= 1
            self._drop_unneeded_window(needed)

    def _drop_unneeded_window(self, node: Node) -> None:
        """With recurrent state a window page is of use to a checkpoint or a running request, or to nobody."""
        if self.shape.recurrent and node.window is not None and not node.window_needs and not node.window_pins:
            self._free_window(node)

    def _free_window(self, node: Node) -> None:
        assert node.window is not None
        assert not node.window_pins
        assert not node.window_needs
        self._pools[ComponentName.WINDOW].free([node.window], Owner.CACHED)
        node.window = None

    def _settle(self, node: Node) -> None:
        """A node that fewer use, or that lost a child: it may be evictable now, or of no use at all."""
        if node.parent is None:
            self._prune(node)
            return
        if self.shape.full:
            self._leaves.offer(node)
        if self.shape.recurrent:
            self._checkpoints.offer(node)
        elif self.shape.window is not None:
            self._windows.offer(node)
        self._prune(node)

    def _prune(self, node: Node) -> None:
        """Takes out a node that holds nothing and leads nowhere, and then those above it of which that is true."""
        while not node.children and not node.pinned and node.empty:
            parent = node.parent
            if parent is None:
                if self._roots.get(node.key.decode()) is node:
                    del self._roots[node.key.decode()]
                return
            self._detach(node)
            # What was a fork may be none any more.
            self._checkpoints.offer(parent)
            node = parent

    def _detach(self, node: Node) -> None:
        assert node.parent is not None
        del node.parent.children[node.key]
        for order in (self._leaves, self._checkpoints, self._windows):
            order.forget(node)

    def _take_over(self, component: ComponentName, unit: int) -> None:
        self._pools[component].move([unit], Owner.HELD, Owner.CACHED)


def _leaf_key(node: Node) -> Key | None:
    if node.children or node.pinned or node.parent is None:
        return None
    return node.hit, node.used


def _checkpoint_key(node: Node) -> Key | None:
    if node.checkpoint is None or node.checkpoint_pins:
        return None
    return len(node.children) > 1, node.checkpoint_hit, node.checkpoint_used


def _window_key(node: Node) -> Key | None:
    if node.window is None or node.window_pins:
        return None
    return node.hit, node.used
