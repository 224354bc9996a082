"""How the bytes of one component come from the device's units into ranges of the host, in few copies; pure arithmetic.

Units lie in the ranges in order, one after another. What neighbours on both sides is one copy. What is scattered on
the device is listed unit by unit, for a copy that gathers or scatters many at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from decode_service.retraction.extents import Extent


@dataclass(frozen=True, slots=True)
class Straight:
    """`length` bytes that lie together on both sides; `device` counts from the component's first unit."""

    device: int
    host: int
    length: int


@dataclass(frozen=True, slots=True)
class Scattered:
    """Entries [first, stop) of the list of units, one after another from `host` on."""

    first: int
    stop: int
    host: int


def plan_copies(
    units: Sequence[int], unit_bytes: int, extents: Sequence[Extent], straight_bytes: int
) -> list[Straight | Scattered]:
    """Copies that move every byte once. A run of neighbours of `straight_bytes` or more is worth a copy of its own."""
    assert len(units) * unit_bytes == sum(extent.length for extent in extents), "units and ranges do not match"
    copies: list[Straight | Scattered] = []
    done = 0
    for extent in extents:
        host, left = extent.start, extent.length
        if head := -done % unit_bytes:
            # The rest of a unit that the last range ended within.
            length = min(head, left)
            copies.append(Straight(_place(units, unit_bytes, done), host, length))
            host, left, done = host + length, left - length, done + length
        first = done // unit_bytes
        stop = first + left // unit_bytes
        copies += _whole(units, unit_bytes, range(first, stop), host, straight_bytes)
        taken = (stop - first) * unit_bytes
        host, left, done = host + taken, left - taken, done + taken
        if left:
            copies.append(Straight(_place(units, unit_bytes, done), host, left))
            done += left
    return copies


def _place(units: Sequence[int], unit_bytes: int, offset: int) -> int:
    return units[offset // unit_bytes] * unit_bytes + offset % unit_bytes


def _whole(
    units: Sequence[int], unit_bytes: int, entries: range, host: int, straight_bytes: int
) -> Iterator[Straight | Scattered]:
    """Copies for whole units that lie together on the host."""
    if not entries:
        return
    edges = np.flatnonzero(np.diff(np.array(units[entries.start : entries.stop])) != 1) + 1
    bounds = np.concatenate(([0], edges, [len(entries)]))
    # Entries before this one are copied. Short runs wait for those behind them.
    done = 0
    for run in np.flatnonzero((np.diff(bounds) * unit_bytes >= straight_bytes) | (len(edges) == 0)):
        start, stop = int(bounds[run]), int(bounds[run + 1])
        if done < start:
            yield Scattered(entries[done], entries[start], host + done * unit_bytes)
        yield Straight(units[entries[start]] * unit_bytes, host + start * unit_bytes, (stop - start) * unit_bytes)
        done = stop
    if done < len(entries):
        yield Scattered(entries[done], entries.stop, host + done * unit_bytes)
