"""Room that a scripted decode engine promises to whoever sends a request's state."""

from collections.abc import Sequence
from dataclasses import dataclass

from segue.batch.admission import headroom
from segue.batch.request import Request
from segue.errors import PoolExhausted
from segue.handoff import Part, UnitRow
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from tests.support.policies import Rig


@dataclass
class Promise:
    """Units set aside for one request: QUARANTINED once nobody waits for them but they may still be written."""

    rows: list[UnitRow]
    checkpoint: list[UnitRow]
    wanted: int | None
    owner: Owner = Owner.RESERVED

    @property
    def all_rows(self) -> list[UnitRow]:
        return [*self.rows, *self.checkpoint]


def reserve(rig: Rig, request: Request) -> Promise:
    """Sets aside what a promised request's state needs beside what is cached of it, as a decode worker does."""
    n, page, window = request.known_len, rig.runner.page_tokens, rig.runner.window or 0
    stop = page_count(n + headroom(request), page)
    offered = (n - 1) // (2 * page) * 2 * page or None
    held = rig.engine.holdings.hold(request)
    wanted = rig.engine.holdings.wanted_checkpoint(request, offered)
    first_live = first_window_page(n, window, page)
    pieces: list[tuple[Part, ComponentName, int, int]] = []
    for name in rig.pools:
        match name:
            case ComponentName.FULL:
                pieces.append((Part.STATE, name, held // page, stop))
            case ComponentName.WINDOW:
                pieces.append((Part.STATE, name, first_live, stop))
                if wanted is not None:
                    below = min(wanted // page, first_live)
                    pieces.append((Part.CHECKPOINT, name, first_window_page(wanted, window, page), below))
            case ComponentName.RECURRENT:
                pieces.append((Part.STATE, name, 0, 1))
                if wanted is not None:
                    pieces.append((Part.CHECKPOINT, name, 0, 1))
    rows = []
    for part, name, first, end in pieces:
        if end <= first and part is Part.CHECKPOINT:
            continue
        try:
            units = rig.pools[name].alloc(end - first, Owner.RESERVED)
        except PoolExhausted as error:
            raise AssertionError(f"room was promised that is not there: {error}") from error
        rows.append(UnitRow(part, name, first, tuple(units)))
    state = [row for row in rows if row.part is Part.STATE]
    return Promise(state, [row for row in rows if row.part is Part.CHECKPOINT], wanted)


def take(rig: Rig, rows: Sequence[UnitRow]) -> None:
    """What was sent is whole: its request holds the units from now on."""
    for row in rows:
        rig.pools[row.component].move(_units(row), Owner.RESERVED, Owner.HELD)


def fence(rig: Rig, promise: Promise) -> None:
    """Nobody waits for the state any more, but it may still be written."""
    for row in promise.all_rows:
        rig.pools[row.component].move(_units(row), promise.owner, Owner.QUARANTINED)
    promise.owner = Owner.QUARANTINED


def give_back(rig: Rig, rows: Sequence[UnitRow], owner: Owner) -> None:
    """Nothing is written to the units any more."""
    for row in rows:
        rig.pools[row.component].free(_units(row), owner)


def _units(row: UnitRow) -> list[int]:
    return [unit for unit in row.units if unit is not None]
