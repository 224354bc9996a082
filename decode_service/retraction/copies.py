"""Copies units of the device's storage to host memory and back: at once on the CPU, on a stream of its own on CUDA.

On CUDA a copy begins when the stream that computes has done what it was given before, and runs beside what it is given
after. Units that are scattered on the device are gathered there first, so that what crosses is few large blocks.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import torch

from decode_service.retraction.extents import Extent, cut
from decode_service.retraction.runs import Scattered, Straight, plan_copies
from segue.peering import ArenaMap, ArenaPart
from segue.state.spec import ComponentName
from segue.state.storage import Storage

WORD = torch.complex128
"""The widest element there is: rows are copied in as few elements as can be."""
STRAIGHT_BYTES_CPU = 32 << 20
STRAIGHT_BYTES_CUDA = 4 << 20
"""A run of neighbours this long is copied alone: what beginning a copy costs (on the CPU, waking a thread) is nothing
beside it.
"""
ROW_BYTES_MAX = 256 << 10
STAGING_BYTES = 32 << 20
"""Device memory through which scattered units pass."""


@dataclass(frozen=True, slots=True)
class Move:
    """Units of one component, and the ranges of host memory where they lie in order."""

    component: ComponentName
    units: tuple[int, ...]
    extents: tuple[Extent, ...]


class Mark(Protocol):
    """A point in a sequence of copies (torch.cuda.Event is one)."""

    def query(self) -> bool:
        """Whether everything before it has finished."""


class Copies(Protocol):
    """Copies between one storage and one arena of the host; each call returns the mark at its end."""

    def save(self, moves: Sequence[Move]) -> Mark: ...

    def restore(self, moves: Sequence[Move], cleared: Sequence[Move]) -> Mark:
        """The units of `cleared` are zero-filled instead."""

    def finish(self) -> None:
        """Waits until all that was begun has finished."""


class Done:
    """The mark of what is finished when the call returns."""

    def query(self) -> bool:
        return True


class All:
    """Several marks, one for each device."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._marks = tuple(marks)

    def query(self) -> bool:
        return all(mark.query() for mark in self._marks)


class DirectCopies:
    """Storage on the CPU."""

    def __init__(self, storage: Storage, arena_map: ArenaMap, host: torch.Tensor) -> None:
        self._storage = storage
        self._ends = _Ends(storage, arena_map, host, STRAIGHT_BYTES_CPU)

    def save(self, moves: Sequence[Move]) -> Mark:
        for move in moves:
            for part, copy in self._ends.plan(move):
                if isinstance(copy, Straight):
                    device, host = self._ends.bytes(part, copy)
                    host.copy_(device)
                else:
                    rows, numbers = self._ends.device_rows(part), self._ends.row_numbers(move, copy)
                    torch.index_select(rows, 0, numbers, out=self._ends.host_rows(part, copy))
        return Done()

    def restore(self, moves: Sequence[Move], cleared: Sequence[Move]) -> Mark:
        for move in moves:
            for part, copy in self._ends.plan(move):
                if isinstance(copy, Straight):
                    device, host = self._ends.bytes(part, copy)
                    device.copy_(host)
                else:
                    rows, numbers = self._ends.device_rows(part), self._ends.row_numbers(move, copy)
                    rows.index_copy_(0, numbers, self._ends.host_rows(part, copy))
        _clear(self._storage, cleared)
        return Done()

    def finish(self) -> None:
        """Nothing is ever under way."""


class StreamCopies:
    """Storage on CUDA devices, pinned host memory. Copies of one device follow one another on one stream."""

    def __init__(self, storage: Storage, arena_map: ArenaMap, host: torch.Tensor) -> None:
        self._storage = storage
        self._ends = _Ends(storage, arena_map, host, STRAIGHT_BYTES_CUDA)
        self._streams = {device: torch.cuda.Stream(device) for device in storage.regions.cuda_devices}
        self._staging = {
            device: torch.empty(STAGING_BYTES, dtype=torch.uint8, device=device).view(WORD) for device in self._streams
        }

    def save(self, moves: Sequence[Move]) -> Mark:
        with self._beside():
            for move in moves:
                for part, copy in self._ends.plan(move):
                    if isinstance(copy, Straight):
                        device, host = self._ends.bytes(part, copy)
                        host.copy_(device, non_blocking=True)
                    else:
                        self._gather(move, part, copy)
            return self._mark()

    def restore(self, moves: Sequence[Move], cleared: Sequence[Move]) -> Mark:
        with self._beside():
            for move in moves:
                for part, copy in self._ends.plan(move):
                    if isinstance(copy, Straight):
                        device, host = self._ends.bytes(part, copy)
                        device.copy_(host, non_blocking=True)
                    else:
                        self._scatter(move, part, copy)
            _clear(self._storage, cleared)
            return self._mark()

    def finish(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        """What is done with any device's memory is done on our stream there, after what was given to it before."""
        with ExitStack() as current:
            for device, stream in self._streams.items():
                stream.wait_stream(torch.cuda.current_stream(device))
                current.enter_context(torch.cuda.stream(stream))
            yield

    def _gather(self, move: Move, part: ArenaPart, copy: Scattered) -> None:
        rows = self._ends.device_rows(part)
        for host, numbers, staged in self._parts(move, part, copy):
            torch.index_select(rows, 0, numbers, out=staged)
            host.copy_(staged, non_blocking=True)

    def _scatter(self, move: Move, part: ArenaPart, copy: Scattered) -> None:
        rows = self._ends.device_rows(part)
        for host, numbers, staged in self._parts(move, part, copy):
            staged.copy_(host, non_blocking=True)
            rows.index_copy_(0, numbers, staged)

    def _parts(
        self, move: Move, part: ArenaPart, copy: Scattered
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """As many rows at a time as fit the staging memory: on the host, their numbers, and in staging memory."""
        rows = self._ends.host_rows(part, copy)
        staging = self._staging[self._ends.device(part)]
        # From pinned memory: a copy from other memory would wait for all that the stream has to do.
        numbers = self._ends.row_numbers(move, copy).pin_memory().to(staging.device, non_blocking=True)
        at_once = staging.numel() // rows.shape[1]
        assert at_once, "a row of scattered units is larger than the staging memory"
        for host, some in zip(rows.split(at_once), numbers.split(at_once), strict=True):
            yield host, some, staging[: host.numel()].view(host.shape)

    def _mark(self) -> Mark:
        events = []
        for stream in self._streams.values():
            events.append(torch.cuda.Event())
            events[-1].record(stream)
        return events[0] if len(events) == 1 else All(events)


class _Ends:
    """Both ends of planned copies, as tensors: bytes of a run, or rows that make up whole units."""

    def __init__(self, storage: Storage, arena_map: ArenaMap, host: torch.Tensor, straight_bytes: int) -> None:
        self._host = host
        self._straight_bytes = straight_bytes
        self._regions = storage.regions
        self._map = arena_map

    def plan(self, move: Move) -> list[tuple[ArenaPart, Straight | Scattered]]:
        """The copies of what each rank has of the units: on the host that of one rank comes after that of another."""
        parts = self._map.ranks(move.component)
        sizes = [len(move.units) * part.unit_bytes for part in parts]
        return [
            (part, copy)
            for part, extents in zip(parts, cut(move.extents, sizes), strict=True)
            for copy in plan_copies(move.units, part.unit_bytes, extents, self._straight_bytes)
        ]

    def bytes(self, part: ArenaPart, copy: Straight) -> tuple[torch.Tensor, torch.Tensor]:
        """The run on the device and on the host, uint8."""
        start = part.base + copy.device
        return self._regions.piece(start, copy.length), self._host[copy.host : copy.host + copy.length]

    def device(self, part: ArenaPart) -> torch.device:
        """Where the units of a part lie."""
        return self._regions.piece(part.base, 0).device

    def device_rows(self, part: ArenaPart) -> torch.Tensor:
        """The rows of all units, [rows, words]."""
        return _in_rows(part, self._regions.piece(part.base, part.units * part.unit_bytes))

    def host_rows(self, part: ArenaPart, copy: Scattered) -> torch.Tensor:
        """Where the rows of the entries of `copy` lie, [rows, words]."""
        length = (copy.stop - copy.first) * part.unit_bytes
        return _in_rows(part, self._host[copy.host : copy.host + length])

    def row_numbers(self, move: Move, copy: Scattered) -> torch.Tensor:
        """The rows of the entries of `copy` among those of all units, [rows] int64."""
        each = _rows_each(self._map.part(move.component).unit_bytes)
        units = np.array(move.units[copy.first : copy.stop], dtype=np.int64)
        return torch.from_numpy((units[:, None] * each + np.arange(each)).reshape(-1))


def _in_rows(part: ArenaPart, memory: torch.Tensor) -> torch.Tensor:
    return memory.view(-1, part.unit_bytes // _rows_each(part.unit_bytes)).view(WORD)


@cache
def _rows_each(unit_bytes: int) -> int:
    """Into how many rows a unit is cut: as few as can be, each so short that threads share rows out, not bytes."""
    words = unit_bytes // WORD.itemsize
    fewest = -(-unit_bytes // ROW_BYTES_MAX)
    return next((count for count in range(fewest, 4 * fewest) if words % count == 0), 1)


def _clear(storage: Storage, moves: Sequence[Move]) -> None:
    for move in moves:
        for unit in move.units:
            storage.zero(move.component, unit)
