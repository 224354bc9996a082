"""Requests over a prefix tree without an engine: every unit is stamped with the tokens that it was computed from."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from segue.cache.check import check_tree
from segue.cache.keys import PageKeys
from segue.cache.lease import Lease
from segue.cache.match import Match
from segue.cache.node import Node
from segue.cache.shape import CacheShape, Strategy
from segue.cache.tree import PrefixTree
from segue.errors import PoolExhausted
from segue.ids import Page, Slot
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName
from segue.state.tables import StateTables
from segue.tokens import token_array

FULL, WINDOW, RECURRENT = ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT
Stamp = tuple[str, tuple[int, ...]]


@dataclass(eq=False)
class Life:
    """A running request: its tokens, what it owns and uses, and how far it is computed."""

    salt: str
    tokens: list[int]
    lease: Lease
    tables: StateTables = field(default_factory=StateTables)
    computed: int = 0


class Worker:
    """Pools, a tree and running requests. What a request reads, and what a match hands out, must have the right stamp.

    `units` are counted without the sink.
    """

    def __init__(
        self, shape: CacheShape, units: int, slots: int | None = None, window_pages: int | None = None
    ) -> None:
        names = {FULL: shape.full, WINDOW: shape.window is not None, RECURRENT: shape.recurrent}
        sizes = {FULL: units, WINDOW: window_pages or units, RECURRENT: slots or units}
        self.shape = shape
        self.pools = {name: Pool(name, sizes[name] + 1) for name, there in names.items() if there}
        self.tree = PrefixTree(shape, self.pools, self._released)
        self.lives: list[Life] = []
        self.stamps: dict[tuple[ComponentName, int], Stamp] = {}
        self.frozen: set[int] = set()

    def cached(self, name: ComponentName) -> int:
        return self.pools[name].counts().cached

    def match(self, tokens: Sequence[int], salt: str = "") -> Match:
        return self.tree.match(salt, self.keys(tokens), len(tokens))

    def resumable(self, tokens: Sequence[int], salt: str = "") -> int:
        """Tokens of a prompt that need not be computed."""
        return self.match(tokens, salt).resumable_pages * self.shape.page_tokens

    def keys(self, tokens: Sequence[int]) -> list[bytes]:
        keys = PageKeys(self.shape.page_tokens, lambda start, stop: token_array(tokens[start:stop]).tobytes())
        return keys.first(len(tokens) // self.shape.page_tokens)

    # A request's life

    def start(self, tokens: Sequence[int], salt: str = "") -> Life:
        """A request that goes on where the tree's cached state ends. Raises PoolExhausted, and then nothing is left."""
        match = self.match(tokens, salt)
        assert match.resumable_pages * self.shape.page_tokens < len(tokens)
        life = Life(salt, list(tokens), self.tree.acquire(match))
        life.computed = len(match.resumable) * self.shape.page_tokens
        self.lives.append(life)
        first = self.shape.window_span(len(match.resumable)).start
        for index, node in enumerate(match.resumable):
            if node.full is not None:
                life.tables.full.append(Page(node.full))
            if self.shape.window is not None:
                life.tables.window.append(Page(node.window) if index >= first and node.window is not None else None)
        life.tables.window_first = first if self.shape.window is not None else 0
        self._take_slot(life)
        if life.tables.slot is not None and life.computed:
            checkpoint = match.resumable[-1].checkpoint
            assert checkpoint is not None
            self.stamps[RECURRENT, life.tables.slot] = self.stamps[RECURRENT, checkpoint]
        return life

    def receive(self, tokens: Sequence[int], salt: str = "") -> Life:
        """A request whose state after its whole prompt comes from elsewhere, but for full pages that are here."""
        match, size = self.match(tokens, salt), self.shape.page_tokens
        life = Life(salt, list(tokens), self.tree.acquire_path(match))
        self.lives.append(life)
        if self.shape.full:
            life.tables.full = [Page(node.full) for node in match.path if node.full is not None]
        if self.shape.window is not None:
            first = first_window_page(len(tokens), self.shape.window, size)
            life.tables.window, life.tables.window_first = [None] * first, first
        life.computed = len(match.path) * size if self.shape.full else 0
        self._take_slot(life)
        try:
            self._grow(life, len(tokens))
        except PoolExhausted:
            self.cancel(life)
            raise
        self._write(life, life.computed, len(tokens))
        # Window pages and the slot arrive whole, whatever of the full pages was here.
        self._write_windows(life, 0, len(tokens))
        self.tree.keep_deepest(life.lease)
        return life

    def compute(self, life: Life, depth: int) -> None:
        """Computes up to `depth`. Raises PoolExhausted, and then nothing has changed."""
        assert life.computed < depth <= len(life.tokens)
        self._grow(life, depth)
        self._write(life, life.computed, depth)

    def publish(self, life: Life, spare: int = 1000) -> bool:
        pages = life.computed // self.shape.page_tokens
        before = life.lease.foreign
        done = self.tree.publish(life.lease, self.keys(life.tokens), life.tables, pages, spare)
        assert 0 <= life.lease.foreign - before <= spare
        return done

    def checkpoint(self, life: Life, spare: int = 1000) -> bool:
        """Leaves the state of now in the tree. Raises PoolExhausted when there is no slot for it."""
        pages, rest = divmod(life.computed, self.shape.page_tokens)
        assert rest == 0
        slot = Slot(self.take(RECURRENT, 1)[0])
        self.stamps[RECURRENT, slot] = (life.salt, tuple(life.tokens[: life.computed]))
        before = life.lease.foreign
        taken = self.tree.publish_checkpoint(life.lease, self.keys(life.tokens), life.tables, pages, slot, spare)
        assert 0 <= life.lease.foreign - before <= spare
        if taken:
            self.frozen.add(slot)
        else:
            self.pools[RECURRENT].free([slot])
        return taken

    def trim(self, life: Life) -> None:
        """Frees what is out of the window and above the floor's reach."""
        if self.shape.window is None:
            return
        tables, size = life.tables, self.shape.page_tokens
        keep_from = min(first_window_page(life.computed, self.shape.window, size), len(tables.window))
        floor = self.tree.floor(life.lease)
        for index in range(tables.window_first, keep_from):
            page = tables.window[index]
            meets = floor is not None and index * size < floor + self.shape.window and (index + 1) * size > floor
            if page is None or meets:
                continue
            tables.window[index] = None
            if index in life.lease.used:
                self.tree.unuse_window(life.lease, index)
            else:
                self.pools[WINDOW].free([page])
        while tables.window_first < keep_from and tables.window[tables.window_first] is None:
            tables.window_first += 1

    def run(self, tokens: Sequence[int], *checkpoints: int, salt: str = "") -> Life:
        """Starts a request and computes all of it, with checkpoints at some depths; publishes what it has."""
        life = self.start(tokens, salt)
        for depth in sorted({depth for depth in (*checkpoints, len(tokens)) if depth > life.computed}):
            self.compute(life, depth)
            self.publish(life)
            if depth in checkpoints:
                self.checkpoint(life)
            self.trim(life)
        return life

    def finish(self, life: Life) -> None:
        self.publish(life)
        self.cancel(life)

    def cancel(self, life: Life) -> None:
        """Ends it; nothing new is published."""
        own = {name: self._own(life, name) for name in self.pools}
        self.tree.release(life.lease)
        self.lives.remove(life)
        for name, units in own.items():
            self.pools[name].free(units)

    def take(self, name: ComponentName, count: int) -> list[int]:
        """Units for a request, evicting what is missing. Raises PoolExhausted."""
        pool = self.pools[name]
        if (short := count - pool.free_count) > 0:
            self.evict(name, short)
        units = pool.alloc(count)
        for unit in units:
            self.stamps.pop((name, unit), None)
        return units

    def evict(self, name: ComponentName, count: int) -> int:
        before = self.pools[name].free_count
        freed = self.tree.forest.evict(name, count)
        assert freed == self.pools[name].free_count - before
        assert freed >= count or not any(_may_go(node, name) for node, _, _ in self.nodes()), "it gave up too early"
        return freed

    # What must hold at any moment

    def check(self) -> None:
        check_tree(self.tree, self.pools)
        for name, pool in self.pools.items():
            pool.check()
            held = [unit for life in self.lives for unit in self._own(life, name)]
            assert len(held) == len(set(held)) == pool.counts().held
        nodes = list(self.nodes())
        assert self.frozen == {node.checkpoint for node, _, _ in nodes if node.checkpoint is not None}
        for node, salt, tokens in nodes:
            for name, unit in ((FULL, node.full), (WINDOW, node.window), (RECURRENT, node.checkpoint)):
                assert unit is None or self.stamps[name, unit] == (salt, tokens), f"{name}: state of other tokens"
        for life in self.lives:
            self._check_readable(life)
            self._check_kept(life)

    def nodes(self) -> list[tuple[Node, str, tuple[int, ...]]]:
        """Every node below a root, with its isolation and its tokens from the root down."""
        found = []
        stack: list[tuple[Node, str, tuple[int, ...]]] = [
            (root, salt, ()) for salt, root in self.tree.forest.roots.items()
        ]
        while stack:
            node, salt, tokens = stack.pop()
            for key, child in node.children.items():
                found.append((child, salt, (*tokens, *array("i", key))))
                stack.append(found[-1])
        return found

    def _check_readable(self, life: Life) -> None:
        """What the next step reads is there, the request's own or pinned, and of its tokens."""
        size, c = self.shape.page_tokens, life.computed
        path = life.lease.anchor.up(life.lease.anchor.pages)[::-1]
        for index in range(page_count(c, size)):
            if self.shape.full:
                page = life.tables.full[index]
                assert self.stamps[FULL, page] == self._stamp(life, index)
                assert self.pools[FULL].owner(page) is Owner.HELD or path[index].full == page
        if self.shape.window:
            for index in range(first_window_page(c, self.shape.window, size), page_count(c, size)):
                window = life.tables.window[index]
                assert window is not None
                assert self.stamps[WINDOW, window] == self._stamp(life, index)
        for index, used in enumerate(life.tables.window):
            if used is not None and self.pools[WINDOW].owner(used) is not Owner.HELD:
                assert life.lease.used[index].window == used
        if life.tables.slot is not None and c:
            assert self.stamps[RECURRENT, life.tables.slot] == (life.salt, tuple(life.tokens[:c]))

    def _check_kept(self, life: Life) -> None:
        """A pinned prefix can still be resumed."""
        if (kept := life.lease.kept) is not None:
            assert self.match([*life.tokens[: life.computed], 0], life.salt).resumable_pages >= kept.pages

    # The parts of it

    def _take_slot(self, life: Life) -> None:
        if self.shape.recurrent:
            try:
                life.tables.slot = Slot(self.take(RECURRENT, 1)[0])
            except PoolExhausted:
                self.cancel(life)
                raise

    def _grow(self, life: Life, depth: int) -> None:
        want, tables = page_count(depth, self.shape.page_tokens), life.tables
        pages = self.take(FULL, max(0, want - len(tables.full))) if self.shape.full else []
        if self.shape.window is not None:
            try:
                tables.window += map(Page, self.take(WINDOW, max(0, want - len(tables.window))))
            except PoolExhausted:
                if pages:
                    self.pools[FULL].free(pages)
                raise
        tables.full += map(Page, pages)

    def _write(self, life: Life, start: int, depth: int) -> None:
        life.computed = depth
        if self.shape.full:
            for index in range(start // self.shape.page_tokens, page_count(depth, self.shape.page_tokens)):
                self._set(life, FULL, life.tables.full[index], self._stamp(life, index))
        self._write_windows(life, start, depth)
        if life.tables.slot is not None:
            self._set(life, RECURRENT, life.tables.slot, (life.salt, tuple(life.tokens[:depth])))

    def _write_windows(self, life: Life, start: int, depth: int) -> None:
        if self.shape.window is None:
            return
        for index in range(start // self.shape.page_tokens, page_count(depth, self.shape.page_tokens)):
            if (page := life.tables.window[index]) is not None:
                self._set(life, WINDOW, page, self._stamp(life, index))

    def _set(self, life: Life, name: ComponentName, unit: int, stamp: Stamp) -> None:
        assert self.pools[name].owner(unit) is Owner.HELD, "a request writes to what is not its own"
        self.stamps[name, unit] = stamp

    def _stamp(self, life: Life, index: int) -> Stamp:
        return life.salt, tuple(life.tokens[: min((index + 1) * self.shape.page_tokens, life.computed)])

    def _own(self, life: Life, name: ComponentName) -> list[int]:
        """Units in the request's tables that are its own, not the tree's."""
        tables = life.tables
        units: dict[ComponentName, list[int]] = {
            FULL: [*tables.full],
            WINDOW: [*tables.live_window_pages()],
            RECURRENT: [] if tables.slot is None else [tables.slot],
        }
        return [unit for unit in units[name] if self.pools[name].owner(unit) is Owner.HELD]

    def _released(self, slot: Slot) -> None:
        self.frozen.remove(slot)
        assert self.pools[RECURRENT].owner(slot) is Owner.CACHED, "told before it goes"


def _may_go(node: Node, name: ComponentName) -> bool:
    if name is FULL:
        return not node.children and not node.pinned
    if name is WINDOW:
        return node.window is not None and not node.window_pins
    return node.checkpoint is not None and not node.checkpoint_pins


def worker(
    *components: ComponentName,
    page: int = 2,
    window: int = 4,
    grid: int | None = None,
    units: int = 40,
    slots: int | None = None,
    window_pages: int | None = None,
    strategy: Strategy = Strategy.EXTRA_BUFFER,
) -> Worker:
    """A worker for a model of these components (all three where none is named); the grid is a page by default."""
    there = components or tuple(ComponentName)
    shape = CacheShape(
        page_tokens=page,
        full=FULL in there,
        window=window if WINDOW in there else None,
        recurrent=RECURRENT in there,
        grid=grid or page,
        interval=grid or page,
        strategy=strategy,
    )
    return Worker(shape, units, slots, window_pages)
