"""Counts what requests use of the prefix cache, at the moment it happens; decides nothing."""

from collections import Counter

from segue.cache.figures import CacheFigures, CacheHits
from segue.cache.tree import PrefixTree
from segue.ids import Handle
from segue.state.spec import ComponentName


class CacheTally:
    """Every call costs the same, however many requests and pages there are."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._looked_up = 0
        self._hits: Counter[ComponentName | None] = Counter()
        self._floors_dropped = 0
        # Pages kept by the floor: of whom, of all, and the most of anyone.
        self._retained: dict[Handle, int] = {}
        self._retained_now = self._retained_max = 0
        self._retained_decoding = self._decode_rows = 0

    def started(self, known: int, reused: int, limited_by: ComponentName | None) -> None:
        """A request of `known` tokens started here after `reused` of them."""
        self._looked_up += known
        if reused:
            self._hits[limited_by] += reused

    def floor_dropped(self) -> None:
        """Memory was short."""
        self._floors_dropped += 1

    def retains(self, handle: Handle, pages: int) -> None:
        """So many pages below the window of a request stay because of its floor, from now on."""
        if pages:
            before = self._retained.get(handle, 0)
            self._retained[handle] = pages
        else:
            before = self._retained.pop(handle, 0)
        self._retained_now += pages - before
        self._retained_max = max(self._retained_max, pages)

    def retained(self, handle: Handle) -> int:
        """What `retains` last said of a request."""
        return self._retained.get(handle, 0)

    def decoded(self, handle: Handle) -> None:
        """A decode step of a request was committed, and its window swept."""
        self._decode_rows += 1
        self._retained_decoding += self._retained.get(handle, 0)

    def figures(self, tree: PrefixTree) -> CacheFigures:
        """All that was counted here and in the tree."""
        counts, size = tree.counts, self._page_tokens
        order = [*ComponentName, None]
        return CacheFigures(
            looked_up_tokens=self._looked_up,
            hits=tuple(
                CacheHits(None if name is None else name.value, self._hits[name])
                for name in order
                if name in self._hits
            ),
            checkpoints_taken=counts.taken,
            checkpoints_duplicate=counts.duplicates,
            checkpoints_skipped=counts.skipped,
            checkpoints_evicted=tree.forest.evicted_checkpoints,
            checkpoints_resumed=counts.resumed,
            floors_dropped=self._floors_dropped,
            floor_tokens=self._retained_now * size,
            floor_tokens_max=self._retained_max * size,
            floor_tokens_decoding=self._retained_decoding * size,
            decode_rows=self._decode_rows,
        )
