"""What requests own in every pool: allocates for a step, frees behind the window, releases at the end.

Decides nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import cast

from segue.batch.audit import check_holdings, own_pages
from segue.batch.request import Request
from segue.batch.reuse import CachedCheckpoint, Due, Reuse, Spare
from segue.batch.slot_door import SlotDoor
from segue.cache.figures import CacheFigures
from segue.errors import PoolExhausted
from segue.handoff import Part, UnitRow
from segue.ids import Handle, Page, Slot
from segue.state.coverage import Coverage
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Pool, PoolCounts
from segue.state.spec import ComponentName
from segue.state.tables import StateTables

COVERAGE = Coverage("the holdings of requests", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)


class Holdings:
    """The pools of one worker and the page tables of its requests. `reuse`: whole prefixes outlive their requests."""

    def __init__(
        self,
        pools: Mapping[ComponentName, Pool],
        slots: SlotDoor,
        *,
        page_tokens: int,
        window: int | None,
        reuse: Reuse | None = None,
    ) -> None:
        COVERAGE.require(pools)
        assert (window is not None) == (ComponentName.WINDOW in pools)
        self._pools = pools
        self._slots = slots
        self._page_tokens = page_tokens
        self._window = window
        self._reuse = reuse
        self._using: dict[Handle, Request] = {}
        # Slots that a planned step fills and that belong to nobody else yet.
        self._coming: set[Slot] = set()
        if reuse is not None:
            for name, pool in pools.items():
                pool.relieve = partial(self._relieve, name)

    def admit(self, request: Request) -> None:
        """Gives a request its tables, what is cached of it, and a slot if the model has recurrent state.

        All or nothing (PoolExhausted).
        """
        assert request.tables is None
        assert request.computed == 0
        tables = StateTables()
        match = None if self._reuse is None else self._reuse.begin(request, tables)
        if (pool := self._pools.get(ComponentName.RECURRENT)) is not None:
            try:
                tables.slot = Slot(pool.alloc(1)[0])
            except PoolExhausted:
                self._end(request)
                request.computed = 0
                raise
            if match is None or match.checkpoint is None:
                self._slots.start(tables.slot)
            else:
                self._slots.resume(match.checkpoint, tables.slot)
        request.tables = tables
        if self._reuse is not None and match is not None:
            self._reuse.count(request, match)
            # Not before: relief must not take the very checkpoint that the slot is to be a copy of.
            self._using[request.handle] = request

    def _end(self, request: Request) -> None:
        if self._reuse is not None and request.lease is not None:
            self._reuse.end(request)
            self._using.pop(request.handle, None)

    def receive(self, request: Request, rows: Sequence[UnitRow], depth: int) -> None:
        """Gives a request the units that its state after `depth` tokens arrived in, and those set aside beside them.

        They are held already. Full pages must begin where those end that `hold` has pinned, window pages where the
        window does.
        """
        assert request.tables is None
        tables = StateTables(window_from=request.window_from(self._window))
        for row in rows:
            assert row.part is Part.STATE, "only the state makes page tables"
            units = [unit for unit in row.units if unit is not None]
            assert len(units) == len(row.units), f"a page of {row.component} is missing"
            match row.component:
                case ComponentName.FULL:
                    held = self._held_pages(request)
                    assert row.first == len(held)
                    tables.full = [*held, *cast(list[Page], units)]
                case ComponentName.WINDOW:
                    assert self._window is not None
                    assert row.first == first_window_page(depth, self._window, self._page_tokens)
                    tables.window = cast(list[Page | None], [*[None] * row.first, *units])
                    tables.window_first = row.first
                case ComponentName.RECURRENT:
                    (slot,) = units
                    tables.slot = Slot(slot)
                    self._slots.receive(tables.slot, depth)
        assert {row.component for row in rows} == set(self._pools), "a component of the state did not arrive"
        request.tables = tables
        if request.lease is not None:
            self._using[request.handle] = request

    def readmit(self, request: Request) -> None:
        """Gives a request that was taken off the device the units that its state needs, to be filled by whoever has it.

        All or nothing (PoolExhausted). Every page is its own: what it once published may be gone.
        """
        assert request.tables is None
        request.tables = tables = StateTables(window_from=request.window_from(self._window))
        if self._window is not None:
            tables.window_first = first_window_page(request.computed, self._window, self._page_tokens)
            tables.window = [None] * tables.window_first
        try:
            self.grow(request, request.computed)
            if (pool := self._pools.get(ComponentName.RECURRENT)) is not None:
                tables.slot = Slot(pool.alloc(1)[0])
                self._slots.receive(tables.slot, request.computed)
        except PoolExhausted:
            self.release(request)
            raise
        request.stops = set()
        if self._reuse is not None:
            self._reuse.reopen(request)
            self._using[request.handle] = request

    def cached_depth(self, request: Request) -> int:
        """How many of the tokens that a request knows could be resumed after now."""
        return 0 if self._reuse is None else self._reuse.match(request).resumable_pages * self._page_tokens

    def hold(self, request: Request) -> int:
        """Pins what is cached of a prompt whose state comes from elsewhere: tokens of full pages that need not come."""
        return 0 if self._reuse is None else self._reuse.hold(request)

    def wanted_checkpoint(self, request: Request, offered: int | None) -> int | None:
        """Depth of the prompt checkpoint that is to follow a state; None without one, or when it is here already."""
        return None if self._reuse is None else self._reuse.wanted_checkpoint(request, offered)

    def offered_checkpoint(self, request: Request) -> int | None:
        """Depth of the checkpoint that computing the request's prompt will leave; None when it leaves none."""
        return None if self._reuse is None else self._reuse.offered_checkpoint(request)

    def prompt_checkpoint(self, request: Request) -> CachedCheckpoint | None:
        """The newest checkpoint on the request's path, which it pins from now on if it did not."""
        return None if self._reuse is None else self._reuse.prompt_checkpoint(request)

    def set_aside(self, request: Request, depth: int) -> None:
        """Keeps full pages up to `depth` for a request whose state is to come from elsewhere, until `let_go`.

        All or nothing (PoolExhausted). Of the others nobody ever needs more than it was expected to.
        """
        missing = page_count(depth, self._page_tokens) - self.hold(request) // self._page_tokens
        tables = StateTables()
        if (pool := self._pools.get(ComponentName.FULL)) is not None:
            try:
                tables.full = cast(list[Page], pool.alloc(missing))
            except PoolExhausted:
                self._end(request)
                raise
        request.tables = tables

    def let_go(self, request: Request) -> None:
        """What was pinned and set aside for a request that does not run is plain cache, and free."""
        if request.tables is None:
            self._end(request)
        else:
            self.release(request)

    def _held_pages(self, request: Request) -> list[Page]:
        return [] if self._reuse is None or request.lease is None else self._reuse.held_pages(request)

    def receive_checkpoint(self, request: Request, rows: Sequence[UnitRow], depth: int, spare: Spare) -> None:
        """The prompt checkpoint at `depth` has followed the state, in units that the request holds from now on.

        It is published, unless the window that belongs to it is not whole any more.
        """
        assert self._reuse is not None
        tables = _owned(request)
        slot: Slot | None = None
        for row in rows:
            assert row.part is Part.CHECKPOINT
            if row.component is ComponentName.RECURRENT:
                slot = Slot(cast(int, row.units[0]))
                continue
            assert row.component is ComponentName.WINDOW
            for index, page in zip(range(row.first, row.stop), row.units, strict=True):
                assert page is not None
                assert tables.window[index] is None, f"window page {index} came twice"
                tables.window[index] = Page(page)
            tables.window_first = min(tables.window_first, row.first)
        assert slot is not None, "a prompt checkpoint has a slot"
        self._slots.receive(slot, depth)
        span = self._reuse.shape.window_span(depth // self._page_tokens)
        whole = all(tables.window[index] is not None for index in span)
        if not whole or not self._reuse.publish_checkpoint(request, depth, slot, spare):
            self._free_slot(slot)
        request.expected = None
        tables.swept = (-1, None)
        self.free_out_of_window(request, self._reuse.floor(request))

    def grow(self, request: Request, depth: int) -> None:
        """Makes every paged table reach position `depth` (exclusive).

        All or nothing over all components (PoolExhausted).
        """
        tables = _owned(request)
        want = page_count(depth, self._page_tokens)
        full, window = self._pools.get(ComponentName.FULL), self._pools.get(ComponentName.WINDOW)
        pages = full.alloc(want - len(tables.full)) if full is not None and want > len(tables.full) else []
        if window is not None and want > len(tables.window):
            try:
                tables.window += cast(list[Page | None], window.alloc(want - len(tables.window)))
            except PoolExhausted:
                if full is not None:
                    full.free(pages)
                raise
        tables.full += cast(list[Page], pages)

    def free_out_of_window(self, request: Request, retain_floor: int | None = None) -> int:
        """Frees window pages that meet neither [c - W, c) nor, if a floor f is given, [f, f + W). Returns how many.

        Knows nothing of recurrent state. Without a floor it behaves exactly as if the parameter did not exist.
        """
        if self._window is None:
            return 0
        tables = _owned(request)
        keep_from = min(first_window_page(request.computed, self._window, self._page_tokens), len(tables.window))
        # Most steps stay within a page.
        if tables.swept == (keep_from, retain_floor):
            return 0
        tables.swept = (keep_from, retain_floor)
        # The floor of who still expects a checkpoint may change between steps.
        tables.quiet_until = (keep_from + 1) * self._page_tokens + self._window if request.expected is None else 0
        freed: list[int] = []
        unused = 0
        for index in range(tables.window_first, keep_from):
            page = tables.window[index]
            if page is None or self._retains(request, index, retain_floor):
                continue
            tables.window[index] = None
            if self._reuse is not None and self._reuse.uses(request, index):
                self._reuse.unuse(request, index)
                unused += 1
            else:
                freed.append(page)
        # Steps are many and a long context has many pages: what is gone is not looked at again.
        while tables.window_first < keep_from and tables.window[tables.window_first] is None:
            tables.window_first += 1
        if freed:
            self._pools[ComponentName.WINDOW].free(freed)
        if self._reuse is not None:
            self._reuse.tally.retains(request.handle, self._reuse.retained_pages(request, keep_from))
        return len(freed) + unused

    def _retains(self, request: Request, index: int, floor: int | None) -> bool:
        """Whether the floor asks for the page. A duplicate goes all the same: the lease keeps the tree's page."""
        if floor is None:
            return False
        if request.expected is None and request.lease is not None and index not in request.lease.used:
            return False
        assert self._window is not None
        return index * self._page_tokens < floor + self._window and (index + 1) * self._page_tokens > floor

    # What outlives a request

    def awaits(self, request: Request, running: Iterable[Request]) -> bool:
        """Whether a running request is about to publish more of the queued one's prefix than is cached."""
        return self._reuse is not None and self._reuse.awaits(request, running)

    def take_checkpoint(self, request: Request, depth: int, *, decode: bool) -> Slot | None:
        """A slot for the state that a step leaves at `depth`, if a checkpoint is due there and a slot can be had."""
        if self._reuse is None or (due := self._reuse.due(request, depth, decode=decode)) is Due.NO:
            return None
        pool = self._pools[ComponentName.RECURRENT]
        if due is Due.YES and not pool.free_count:
            self._reuse.evict(ComponentName.RECURRENT, 1)
        if not pool.free_count:
            self._reuse.tree.counts.skipped += due is Due.YES
            return None
        slot = Slot(pool.alloc(1)[0])
        self._coming.add(slot)
        return slot

    def discard_checkpoint(self, slot: Slot) -> None:
        """The step's request ended meanwhile: nobody wants the state."""
        self._coming.remove(slot)
        self._pools[ComponentName.RECURRENT].free([slot])

    def settled_quietly(self, request: Request) -> bool:
        """Whether a decode step without a checkpoint left nothing to publish or free, as most do; else `settle` it."""
        tables = request.tables
        if tables is None or request.computed >= tables.quiet_until:
            return False
        if self._reuse is not None:
            self._reuse.tally.decoded(request.handle)
        return True

    def settle(self, request: Request, checkpoint: Slot | None, *, decode: bool, spare: Spare) -> None:
        """A step was committed at `request.computed`: publishes what it left, frees what is out of the window.

        `spare` tells how many full pages of others the request may come to pin beside its own.
        """
        floor = None
        if self._reuse is not None and request.lease is not None:
            if checkpoint is not None:
                self._coming.remove(checkpoint)
                self._slots.receive(checkpoint, request.computed)
                if not self._reuse.publish_checkpoint(request, request.computed, checkpoint, spare):
                    self._free_slot(checkpoint)
                _owned(request).swept = (-1, None)
            elif not decode:
                self._reuse.publish(request, request.computed, spare)
            floor = self._reuse.floor(request)
        self.free_out_of_window(request, floor)
        if decode and self._reuse is not None:
            self._reuse.tally.decoded(request.handle)

    def publish_received(self, request: Request, spare: Spare) -> None:
        """Gives the tree what came from another worker."""
        if self._reuse is not None and request.lease is not None:
            self._reuse.publish(request, request.computed, spare)
            self._reuse.keep_deepest(request)
            self.free_out_of_window(request, self._reuse.floor(request))

    def publish_ended(self, request: Request, spare: Spare) -> None:
        """The request ended well: what it computed of the tokens it keeps goes to the tree."""
        if self._reuse is None or request.lease is None:
            return
        tables = _owned(request)
        slot = tables.slot
        if slot is not None and self._reuse.may_donate(request):
            self._slots.whole(slot)
            if self._reuse.publish_checkpoint(request, request.computed, slot, spare):
                tables.slot = None
        else:
            self._reuse.publish(request, min(request.computed, request.known_len), spare)

    def _free_slot(self, slot: Slot) -> None:
        self._slots.release(slot)
        self._pools[ComponentName.RECURRENT].free([slot])

    def _relieve(self, component: ComponentName, count: int) -> None:
        """An allocation lacks `count` units: unpinned cache goes first, then the floors, one request after another."""
        assert self._reuse is not None
        count -= self._reuse.evict(component, count)
        if component is ComponentName.FULL:
            return
        for request in list(self._using.values()):
            if count <= 0:
                return
            if self._reuse.drop_floor(request):
                before = self._pools[component].free_count
                if request.tables is not None:
                    self.free_out_of_window(request)
                count -= self._pools[component].free_count - before
                count -= self._reuse.evict(component, count)

    def release(self, request: Request) -> None:
        """Takes everything the request owns back into the pools."""
        tables = _owned(request)
        request.tables = None
        for name, pages in ((ComponentName.FULL, tables.full), (ComponentName.WINDOW, tables.live_window_pages())):
            if (pool := self._pools.get(name)) is not None:
                pool.free(own_pages(pool, pages))
        if tables.slot is not None:
            self._free_slot(tables.slot)
        self._end(request)

    def withheld(self) -> dict[ComponentName, int]:
        """Units that a peer may still write although nobody waits for them: nobody can be promised them."""
        return {name: pool.counts().quarantined for name, pool in self._pools.items()}

    def counts(self) -> tuple[PoolCounts, ...]:
        """The disjoint sets of every pool, in component order."""
        return tuple(self._pools[name].counts() for name in ComponentName if name in self._pools)

    def cache_figures(self) -> CacheFigures:
        """What requests used of the cache so far; all zero without one."""
        return CacheFigures() if self._reuse is None else self._reuse.tally.figures(self._reuse.tree)

    def check(self, requests: Iterable[Request]) -> None:
        """Asserts that the pools are whole and that exactly the units in `requests`' tables are held, each once."""
        check_holdings(self._pools, requests, self._coming, self._reuse)


def _owned(request: Request) -> StateTables:
    assert request.tables is not None, f"request {request.request_id} owns nothing"
    return request.tables
