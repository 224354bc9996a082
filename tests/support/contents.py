"""What lies in every unit of a scripted engine, and a host memory for it: so that no state is mixed, lost or late.

A page holds the token of each position that was written to it, a slot all tokens that went through it; with
`states` there are real matrices and rings in the slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from segue.batch.backups import Backup
from segue.batch.request import Request
from segue.batch.step import StepRow
from segue.errors import DigestMismatch
from segue.handoff import UnitRow
from segue.ids import Slot
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Owner, Pool, PoolCounts
from segue.state.spec import ComponentName
from segue.state.tables import StateTables
from tests.support.delta_model import DeltaStates, Tokens

Unit = tuple[ComponentName, int]
Page = dict[int, int]
PAGED = (ComponentName.FULL, ComponentName.WINDOW)


@dataclass
class Contents:
    """Of pages by position, of slots after all tokens."""

    page_tokens: int
    window: int | None
    components: frozenset[ComponentName]
    pages: dict[Unit, Page] = field(default_factory=dict)
    slots: dict[Slot, Tokens] = field(default_factory=dict)
    states: DeltaStates | None = None

    def compute(self, row: StepRow) -> None:
        """A row reads all that its positions may see, which must be its own request's, and writes its own."""
        request, tables = row.request, row.request.tables
        assert tables is not None
        self.require(request, tables, row.start)
        self.write(request, tables, row.start, row.depth)
        if tables.slot is not None:
            self.slots[tables.slot] = _tokens(request, row.depth)
            if row.checkpoint is not None:
                self.slots[row.checkpoint] = self.slots[tables.slot]

    def require(self, request: Request, tables: StateTables, depth: int) -> None:
        """Asserts that the whole state after `depth` tokens is the request's."""
        for name, first in self._paged(depth):
            for position in range(first, depth):
                page = _table(tables, name)[position // self.page_tokens]
                assert page is not None
                found = self.pages.get((name, page), {}).get(position)
                assert found == request.token_at(position), f"{request.request_id} reads a foreign {name} position"
        if tables.slot is not None:
            assert self.slots[tables.slot] == _tokens(request, depth), f"{request.request_id} has a foreign slot"

    def write(self, request: Request, tables: StateTables, start: int, stop: int) -> None:
        """Positions [start, stop) of every paged component."""
        for name, _ in self._paged(stop):
            for position in range(start, stop):
                page = _table(tables, name)[position // self.page_tokens]
                if page is None:
                    continue
                if position % self.page_tokens == 0 or (name, page) not in self.pages:
                    self.pages[name, page] = {}
                self.pages[name, page][position] = request.token_at(position)

    def arrive(self, request: Request, rows: Sequence[UnitRow], depth: int) -> None:
        """Another engine has written the request's state after `depth` tokens to these units."""
        for row in rows:
            for index, unit in enumerate(row.units, row.first):
                assert unit is not None
                if row.component is ComponentName.RECURRENT:
                    self.slots[Slot(unit)] = _tokens(request, depth)
                    if self.states is not None:
                        self.states.arrive(Slot(unit), self.slots[Slot(unit)])
                    continue
                stop = min(depth, (index + 1) * self.page_tokens)
                positions = range(index * self.page_tokens, stop)
                self.pages[row.component, unit] = {one: request.token_at(one) for one in positions}

    def _paged(self, depth: int) -> list[tuple[ComponentName, int]]:
        first = {ComponentName.FULL: 0, ComponentName.WINDOW: max(0, depth - (self.window or 0))}
        return [(name, first[name]) for name in PAGED if name in self.components]


@dataclass(eq=False)
class ScriptedBackup:
    """What was in the units, taken when the copy began."""

    depth: int
    bytes: int
    pages: dict[tuple[ComponentName, int], Page]
    slot: Tokens | None
    matrix: Tensor | None = None
    copied: bool = False
    hosted: bool = True
    broken: bool = False
    tables: StateTables | None = None
    units: list[Unit] = field(default_factory=list)
    """Of the device, while a copy is under way."""


@dataclass
class ScriptedStore:
    """Host memory for so many backups. Copies take until `finish`, or the store's own `tick`, where `slow`."""

    contents: Contents
    pools: dict[ComponentName, Pool]
    depths: dict[Slot, int]
    """What the door of the slots was told."""
    capacity: int
    slow: bool = False
    breaks: bool = False
    """Whether what is saved from now on comes back changed."""
    backups: list[ScriptedBackup] = field(default_factory=list)
    outward: list[ScriptedBackup] = field(default_factory=list)
    inward: list[ScriptedBackup] = field(default_factory=list)

    def save(self, tables: StateTables, depth: int) -> ScriptedBackup | None:
        if len(self.backups) == self.capacity:
            return None
        pages, units = {}, []
        for name, index, unit in self._places(tables, depth):
            held = self.contents.pages[name, unit]
            pages[name, index] = {one: token for one, token in held.items() if one < depth}
            units.append((name, unit))
        assert tables.slot is None or self.depths[tables.slot] == depth
        slot = None if tables.slot is None else self.contents.slots[tables.slot]
        backup = ScriptedBackup(depth, len(units), pages, slot, broken=self.breaks, units=units)
        if tables.slot is not None and self.contents.states is not None:
            backup.matrix = self.contents.states.save(tables.slot)
        self.backups.append(backup)
        self.outward.append(backup)
        if not self.slow:
            self.finish()
        return backup

    def restore(self, backup: Backup, tables: StateTables) -> None:
        assert isinstance(backup, ScriptedBackup)
        assert backup.copied
        assert tables.slot is None or self.depths[tables.slot] == backup.depth
        backup.copied, backup.tables = False, tables
        places = list(self._places(tables, backup.depth))
        assert len(places) == len(backup.pages)
        assert len(tables.full) in (0, page_count(backup.depth, self.contents.page_tokens))
        for name, _, unit in places:
            assert self.pools[name].owner(unit) is Owner.HELD
            self.contents.pages[name, unit] = {}
        self.inward.append(backup)
        if not self.slow:
            self.finish()

    def require_whole(self, backup: Backup, tables: StateTables) -> None:
        assert isinstance(backup, ScriptedBackup)
        if backup.broken:
            raise DigestMismatch("changed in host memory")

    def free(self, backup: Backup) -> None:
        assert isinstance(backup, ScriptedBackup)
        assert backup.copied
        self.backups.remove(backup)

    def finish(self) -> None:
        while self.tick():
            pass

    def tick(self) -> bool:
        """Finishes the copy that was begun first. False when there is none."""
        if self.outward:
            backup = self.outward.pop(0)
            for name, unit in backup.units:
                assert self.pools[name].owner(unit) is not Owner.FREE, "a unit was given away under a copy"
        elif self.inward:
            backup = self.inward.pop(0)
            tables = backup.tables
            assert tables is not None
            for name, index, unit in self._places(tables, backup.depth):
                assert self.pools[name].owner(unit) is Owner.HELD, "a unit was given away under a copy"
                self.contents.pages[name, unit] = dict(backup.pages[name, index])
            if tables.slot is not None:
                assert backup.slot is not None
                self.contents.slots[tables.slot] = backup.slot
                if backup.matrix is not None and self.contents.states is not None:
                    self.contents.states.fill(tables.slot, backup.matrix)
        else:
            return False
        backup.copied, backup.tables = True, None
        return True

    @property
    def awaited(self) -> set[Slot]:
        """Slots whose state is still to come back."""
        tables = [backup.tables for backup in self.inward if backup.tables is not None]
        return {one.slot for one in tables if one.slot is not None}

    def check(self) -> None:
        assert all(one in self.backups for one in (*self.outward, *self.inward))

    def counts(self) -> tuple[PoolCounts, ...]:
        held = len(self.backups)
        return (PoolCounts("host", self.capacity, self.capacity - held, held, sink=0),)

    def _places(self, tables: StateTables, depth: int) -> list[tuple[ComponentName, int, int]]:
        size = self.contents.page_tokens
        found = []
        for name in PAGED:
            if name not in self.contents.components:
                continue
            first = first_window_page(depth, self.contents.window or 0, size) if name is ComponentName.WINDOW else 0
            for index in range(first, page_count(depth, size)):
                page = _table(tables, name)[index]
                assert page is not None, f"{name} page {index} is not there to be saved"
                found.append((name, index, int(page)))
        return found


def _table(tables: StateTables, name: ComponentName) -> Sequence[int | None]:
    return tables.full if name is ComponentName.FULL else tables.window


def _tokens(request: Request, depth: int) -> Tokens:
    return tuple(request.tokens(0, depth))
