"""Byte ranges cut from one arena: whole where there is a hole that fits, in pieces where only their sum does.

Pure bookkeeping; knows no tensors. A request is refused only when fewer bytes are free than it wants.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """Bytes [start, start + length)."""

    start: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.length


class Extents:
    """Bytes [0, capacity): free ones as few ranges in order, neighbours joined."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._free = [Extent(0, capacity)] if capacity else []

    @property
    def free_bytes(self) -> int:
        return sum(extent.length for extent in self._free)

    def alloc(self, length: int) -> tuple[Extent, ...] | None:
        """Ranges of `length` bytes together: the smallest hole that fits, else the largest ones until it is enough.

        None, and nothing is taken, when fewer bytes are free.
        """
        assert length > 0
        if length > self.free_bytes:
            return None
        taken: list[Extent] = []
        left = length
        while left:
            fitting = [hole for hole in self._free if hole.length >= left]
            hole = min(fitting, key=_by_length) if fitting else max(self._free, key=_by_length)
            taken.append(self._take(hole, min(left, hole.length)))
            left -= taken[-1].length
        return tuple(taken)

    def free(self, extents: Iterable[Extent]) -> None:
        """Gives ranges back that `alloc` gave, whole or in parts."""
        for extent in extents:
            assert extent.length > 0
            assert 0 <= extent.start < extent.stop <= self.capacity, f"{extent} is not in the arena"
            at = bisect_left(self._free, extent)
            before, after = self._free[:at][-1:], self._free[at : at + 1]
            assert not before or before[0].stop <= extent.start, f"{extent} is free already"
            assert not after or extent.stop <= after[0].start, f"{extent} is free already"
            start, stop = extent.start, extent.stop
            first, last = at, at
            if before and before[0].stop == start:
                first, start = at - 1, before[0].start
            if after and after[0].start == stop:
                last, stop = at + 1, after[0].stop
            self._free[first:last] = [Extent(start, stop - start)]

    def check(self, held: Iterable[Extent]) -> None:
        """Asserts that free and held ranges cover the arena, every byte once."""
        at = 0
        for extent in sorted([*self._free, *held]):
            assert extent.start == at, f"bytes [{at}, {extent.start}) belong to nobody, or to two"
            at = extent.stop
        assert at == self.capacity
        for one, other in zip(self._free, self._free[1:], strict=False):
            assert one.stop < other.start, "two neighbouring holes were not joined"

    def _take(self, hole: Extent, length: int) -> Extent:
        at = bisect_left(self._free, hole)
        rest = Extent(hole.start + length, hole.length - length)
        self._free[at : at + 1] = [rest] if rest.length else []
        return Extent(hole.start, length)


def cut(extents: Sequence[Extent], lengths: Iterable[int]) -> list[tuple[Extent, ...]]:
    """Shares the ranges out, in order, to takers of so many bytes; together they take all of it."""
    left = list(reversed(extents))
    shares = []
    for length in lengths:
        share = []
        while length:
            extent = left.pop()
            if extent.length > length:
                left.append(Extent(extent.start + length, extent.length - length))
                extent = Extent(extent.start, length)
            share.append(extent)
            length -= extent.length
        shares.append(tuple(share))
    assert not left, "bytes were left over"
    return shares


def _by_length(extent: Extent) -> tuple[int, int]:
    return extent.length, -extent.start
