"""In which order cached things go: a queue by key whose entries are looked at again when their turn comes."""

import heapq
import itertools
from collections.abc import Callable, Collection

from segue.cache.node import Node

Key = tuple[bool | int, ...]

_STALE_MAX = 64


class EvictionOrder:
    """Nodes of which something may be evicted, smallest key first. `key` gives None for what must stay now.

    A node is offered when it may have become evictable, or when its key may be smaller than before. Keys that grew
    meanwhile are noticed at the node's turn, so that a match costs the queue nothing.
    """

    def __init__(self, key: Callable[[Node], Key | None]) -> None:
        self._key = key
        self._heap: list[tuple[Key, int, Node]] = []
        self._waiting: dict[Node, Key] = {}
        self._numbers = itertools.count()

    def offer(self, node: Node) -> None:
        """The node may have become evictable, or evictable earlier."""
        key = self._key(node)
        if key is None or ((waiting := self._waiting.get(node)) is not None and waiting <= key):
            return
        self._waiting[node] = key
        heapq.heappush(self._heap, (key, next(self._numbers), node))
        self._sweep()

    def forget(self, node: Node) -> None:
        """The node is out of the tree."""
        self._waiting.pop(node, None)
        self._sweep()

    def take(self) -> Node | None:
        """Whose turn it is; None when nothing can go."""
        while self._heap:
            key, _, node = heapq.heappop(self._heap)
            if self._waiting.get(node) != key:
                continue
            del self._waiting[node]
            if self._key(node) == key:
                return node
            self.offer(node)
        return None

    def check(self, nodes: Collection[Node]) -> None:
        """Asserts that what can go of `nodes`, all there are, waits for its turn, not too late, and nothing else."""
        for node in nodes:
            if (key := self._key(node)) is not None:
                assert node in self._waiting, f"page {node.pages} could be evicted, but its turn never comes"
                assert self._waiting[node] <= key, f"the turn of page {node.pages} comes too late"
        assert self._waiting.keys() <= set(nodes), "a node that is gone waits for its turn"
        queued = {(node, key) for key, _, node in self._heap}
        assert queued >= set(self._waiting.items()), "a node that waits is not in the queue"

    def __len__(self) -> int:
        """Entries, stale ones included."""
        return len(self._heap)

    def _sweep(self) -> None:
        """Stale entries would pile up in an order whose turn never comes, and keep nodes that are gone."""
        if len(self._heap) > 2 * len(self._waiting) + _STALE_MAX:
            self._heap = [entry for entry in self._heap if self._waiting.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
