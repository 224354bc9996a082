"""From pages to bytes: which run of the sender's arena goes to which place in the receiver's; moves nothing.

Blocks are int64 `[count, 3]`: source offset, target offset, bytes, both offsets from the start of an arena. A page is
one run of bytes, and neighbours in both arenas become one block, because a block costs more than its bytes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kv_transfer.plan import ByteRun, Piece
from segue.errors import TransferRefused
from segue.handoff import Part, UnitRow
from segue.peering import ArenaMap
from segue.state.spec import ComponentName

Blocks: TypeAlias = NDArray[np.int64]

HOLE = -1


class Places:
    """Where one side keeps the pages of one request: unit numbers by part, component and absolute page index."""

    def __init__(self, rows: Iterable[UnitRow]) -> None:
        self._rows = {
            (row.part, row.component): (row.first, np.array([_known(unit) for unit in row.units], dtype=np.int64))
            for row in rows
        }

    def units(self, piece: Piece, arena: ArenaMap) -> NDArray[np.int64]:
        """Unit numbers of the piece's pages.

        Raises TransferRefused, naming component and pages, where a page is not there or its unit is not in the arena.
        """
        first, row = self._rows.get((piece.part, piece.component), (0, _NOTHING))
        if piece.first < first or piece.stop > first + len(row):
            raise TransferRefused(
                f"{name_piece(piece)} are to travel, pages [{first}, {first + len(row)}) were promised"
            )
        units = row[piece.first - first : piece.stop - first]
        limit = arena.part(piece.component).units
        if bool((units < 1).any()) or bool((units >= limit).any()):
            raise TransferRefused(f"{name_piece(piece)} lie in units that are none of 1 .. {limit - 1}")
        return units


def name_piece(piece: Piece) -> str:
    """The piece as a person reads it."""
    return f"{piece.component.value} pages [{piece.first}, {piece.stop}) of the {piece.part.value}"


def cut_blocks(
    pieces: Sequence[Piece],
    runs: Mapping[ComponentName, tuple[ByteRun, ...]],
    source: tuple[Places, ArenaMap],
    target: tuple[Places, ArenaMap],
) -> Blocks:
    """The blocks of some pieces, merged and in source order. Raises TransferRefused as `Places.units` does."""
    cut = [np.empty((0, 3), dtype=np.int64)]
    for piece in pieces:
        source_units, target_units = source[0].units(piece, source[1]), target[0].units(piece, target[1])
        for run in runs[piece.component]:
            ours = source[1].part(piece.component, run.source_rank)
            theirs = target[1].part(piece.component, run.target_rank)
            starts = ours.base + source_units * ours.unit_bytes
            ends = theirs.base + target_units * theirs.unit_bytes
            sizes = np.full_like(starts, run.bytes)
            cut.append(np.stack((starts + run.source_offset, ends + run.target_offset, sizes), axis=1))
    return merge(np.concatenate(cut))


def merge(blocks: Blocks) -> Blocks:
    """Joins blocks that are neighbours in both arenas."""
    if len(blocks) < 2:
        return blocks
    # Pools hand out falling unit numbers, so neighbours are found only after sorting.
    blocks = blocks[np.argsort(blocks[:, 0], kind="stable")]
    ends = blocks[:-1, :2] + blocks[:-1, 2:]
    heads = np.flatnonzero(np.concatenate(([True], (blocks[1:, :2] != ends).any(axis=1))))
    merged = blocks[heads]
    merged[:, 2] = np.add.reduceat(blocks[:, 2], heads)
    return merged


def batches(blocks: Blocks, bytes_max: int) -> Iterator[Blocks]:
    """The same bytes in batches of at most `bytes_max`; a larger block is cut."""
    batch: list[tuple[int, int, int]] = []
    room = bytes_max
    for source, target, size in blocks.tolist():
        while size:
            taken = min(size, room)
            batch.append((source, target, taken))
            source, target, size, room = source + taken, target + taken, size - taken, room - taken
            if room == 0:
                yield np.array(batch, dtype=np.int64)
                batch, room = [], bytes_max
    if batch:
        yield np.array(batch, dtype=np.int64)


def byte_count(blocks: Blocks) -> int:
    """Bytes that the blocks move."""
    return int(blocks[:, 2].sum())


def check_bounds(blocks: Blocks, source_bytes: int, target_bytes: int) -> None:
    """Asserts that every block lies within both arenas: the last look before memory is written."""
    if len(blocks) == 0:
        return
    assert int(blocks[:, 2].min()) > 0, "a block of no bytes"
    assert int(blocks[:, :2].min()) >= 0, "a block before its arena"
    assert int((blocks[:, 0] + blocks[:, 2]).max()) <= source_bytes, "a block past the source arena"
    assert int((blocks[:, 1] + blocks[:, 2]).max()) <= target_bytes, "a block past the target arena"


def sent_row(part: Part, component: ComponentName, units: Sequence[int | None]) -> UnitRow:
    """A row of a table that begins at the prompt's first page."""
    return UnitRow(part, component, 0, tuple(units))


def _known(unit: int | None) -> int:
    return HOLE if unit is None else unit


_NOTHING = np.empty(0, dtype=np.int64)
