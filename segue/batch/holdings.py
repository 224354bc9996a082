"""What requests own in every pool: allocates for a step, frees behind the window, releases at the end.

Decides nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

from segue.batch.request import Request
from segue.batch.tables import StateTables
from segue.errors import PoolExhausted
from segue.handoff import Part, UnitRow
from segue.ids import Page, Slot
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Pool, PoolCounts
from segue.state.spec import ComponentName


class SlotDoor(Protocol):
    """Told of every slot that changes owner, at the moment it does (SlotStates in a worker, a recorder in tests)."""

    def start(self, slot: Slot) -> None:
        """The slot was just allocated: zero it now."""

    def receive(self, slot: Slot, depth: int) -> None:
        """The slot was just taken over with a whole state at `depth` in it: it is never zeroed."""

    def advance(self, slot: Slot, depth: int, pending: int) -> None:
        """A committed step left the slot's state at `depth`, with `pending` records not folded in yet."""

    def release(self, slot: Slot) -> None:
        """The slot goes back to its pool."""


class Holdings:
    """The pools of one worker and the page tables of its requests."""

    def __init__(
        self, pools: Mapping[ComponentName, Pool], slots: SlotDoor, *, page_tokens: int, window: int | None
    ) -> None:
        assert (window is not None) == (ComponentName.WINDOW in pools)
        self._pools = pools
        self._slots = slots
        self._page_tokens = page_tokens
        self._window = window

    def admit(self, request: Request) -> None:
        """Gives a request its tables and, if the model has recurrent state, a zeroed slot.

        All or nothing (PoolExhausted).
        """
        assert request.tables is None
        assert request.computed == 0
        tables = StateTables()
        if (pool := self._pools.get(ComponentName.RECURRENT)) is not None:
            tables.slot = Slot(pool.alloc(1)[0])
            self._slots.start(tables.slot)
        request.tables = tables

    def receive(self, request: Request, rows: Sequence[UnitRow], depth: int) -> None:
        """Gives a request the units that its state after `depth` tokens arrived in, and those set aside beside them.

        They are held already. Full pages must begin at the prompt's start, window pages where the window does.
        """
        assert request.tables is None
        tables = StateTables()
        for row in rows:
            assert row.part is Part.STATE, "only the state makes page tables"
            units = [unit for unit in row.units if unit is not None]
            assert len(units) == len(row.units), f"a page of {row.component} is missing"
            match row.component:
                case ComponentName.FULL:
                    assert row.first == 0
                    tables.full = cast(list[Page], units)
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
        freed: list[int] = []
        for index in range(tables.window_first, keep_from):
            page = tables.window[index]
            if page is None or (retain_floor is not None and self._meets_floor(index, retain_floor, self._window)):
                continue
            tables.window[index] = None
            freed.append(page)
        # Steps are many and a long context has many pages: what is gone is not looked at again.
        while tables.window_first < keep_from and tables.window[tables.window_first] is None:
            tables.window_first += 1
        if freed:
            self._pools[ComponentName.WINDOW].free(freed)
        return len(freed)

    def release(self, request: Request) -> None:
        """Takes everything the request owns back into the pools."""
        tables = _owned(request)
        request.tables = None
        if (full := self._pools.get(ComponentName.FULL)) is not None:
            full.free(tables.full)
        if (window := self._pools.get(ComponentName.WINDOW)) is not None:
            window.free(tables.live_window_pages())
        if tables.slot is not None:
            self._slots.release(tables.slot)
            self._pools[ComponentName.RECURRENT].free([tables.slot])

    def withheld(self) -> dict[ComponentName, int]:
        """Units that a peer may still write although nobody waits for them: nobody can be promised them."""
        return {name: pool.counts().quarantined for name, pool in self._pools.items()}

    def counts(self) -> tuple[PoolCounts, ...]:
        """The disjoint sets of every pool, in component order."""
        return tuple(self._pools[name].counts() for name in ComponentName if name in self._pools)

    def check(self, requests: Iterable[Request]) -> None:
        """Asserts that the pools are whole and that exactly the units in `requests`' tables are held, each once."""
        owned: dict[ComponentName, list[int]] = {name: [] for name in self._pools}
        for request in requests:
            if request.tables is None:
                continue
            if ComponentName.FULL in owned:
                owned[ComponentName.FULL] += request.tables.full
            if ComponentName.WINDOW in owned:
                assert not any(request.tables.window[: request.tables.window_first])
                owned[ComponentName.WINDOW] += request.tables.live_window_pages()
            if request.tables.slot is not None:
                owned[ComponentName.RECURRENT].append(request.tables.slot)
        for name, pool in self._pools.items():
            pool.check()
            units = owned[name]
            assert len(units) == len(set(units)), f"two requests own the same unit of {name}"
            assert all(pool.holds(unit) for unit in units), f"a request owns a unit of {name} that is not held"
            assert len(units) == pool.counts().held, (
                f"pool {name} holds {pool.counts().held} units, requests own {len(units)}"
            )

    def _meets_floor(self, index: int, floor: int, window: int) -> bool:
        return index * self._page_tokens < floor + window and (index + 1) * self._page_tokens > floor


def _owned(request: Request) -> StateTables:
    assert request.tables is not None, f"request {request.request_id} owns nothing"
    return request.tables
