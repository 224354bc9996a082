"""Backend `host_pool`: pages of the host beside the pages of the device, counted like them; no room for slots."""

from collections.abc import Iterable, Sequence

import torch

from decode_service.retraction.extents import Extent
from decode_service.retraction.memory import host_arena
from segue.peering import ArenaPart
from segue.state.pool import Pool, PoolCounts
from segue.state.spec import ComponentName


class HostPool:
    """One pool of host pages per paged component. Unit u of a pool, which counts from 1, is host page u - 1.

    The budget is split in the proportion in which the device's own pools have pages, so that a host that holds a
    share of the device's bytes holds that share of its requests, whatever their lengths; but there are window pages
    for one request at least. What remains goes to full pages.
    """

    def __init__(self, host_bytes: int, parts: Sequence[ArenaPart], window_pages: int, device: torch.device) -> None:
        """`parts`: the device's pools, sinks included. `window_pages`: most pages that meet the window of one request.

        Raises ConfigError when the memory is not to be had.
        """
        counts = _split(host_bytes, parts, window_pages)
        self._unit_bytes = {part.component: part.unit_bytes for part in parts}
        self._base: dict[ComponentName, int] = {}
        total = 0
        for component, count in counts.items():
            self._base[component] = total
            total += count * self._unit_bytes[component]
        self.arena = host_arena(total, device)
        self._pools = {component: Pool(f"host_{component.value}", count + 1) for component, count in counts.items()}

    def alloc(self, units: Sequence[tuple[ComponentName, int]]) -> list[tuple[Extent, ...]] | None:
        if any(count > self._pools[component].free_count for component, count in units):
            return None
        return [self._extents(component, self._pools[component].alloc(count)) for component, count in units]

    def free(self, component: ComponentName, extents: Sequence[Extent]) -> None:
        # The last freed is the first allocated: downwards, so that neighbours are handed out together again.
        self._pools[component].free(sorted(self._units(component, extents), reverse=True))

    def counts(self) -> tuple[PoolCounts, ...]:
        return tuple(pool.counts() for pool in self._pools.values())

    def check(self, held: Iterable[tuple[ComponentName, Sequence[Extent]]]) -> None:
        owned: dict[ComponentName, list[int]] = {component: [] for component in self._pools}
        for component, extents in held:
            owned[component] += self._units(component, extents)
        for component, pool in self._pools.items():
            pool.check()
            units = owned[component]
            assert len(units) == len(set(units)), f"two backups own the same page of {pool.name}"
            assert all(pool.holds(unit) for unit in units), f"a backup owns a page of {pool.name} that is not held"
            assert len(units) == pool.counts().held, f"pages of {pool.name} are held by no backup"

    def _extents(self, component: ComponentName, units: Sequence[int]) -> tuple[Extent, ...]:
        """The pages in ascending order, neighbours joined."""
        base, size = self._base[component], self._unit_bytes[component]
        runs: list[list[int]] = []
        for unit in sorted(units):
            if runs and runs[-1][-1] == unit - 1:
                runs[-1].append(unit)
            else:
                runs.append([unit])
        return tuple(Extent(base + (run[0] - 1) * size, len(run) * size) for run in runs)

    def _units(self, component: ComponentName, extents: Sequence[Extent]) -> list[int]:
        base, size = self._base[component], self._unit_bytes[component]
        assert all((extent.start - base) % size == 0 and extent.length % size == 0 for extent in extents)
        return [
            unit
            for extent in extents
            for unit in range((extent.start - base) // size + 1, (extent.stop - base) // size + 1)
        ]


def _split(host_bytes: int, parts: Sequence[ArenaPart], window_pages: int) -> dict[ComponentName, int]:
    """Host pages of each component."""
    whole = sum((part.units - 1) * part.unit_bytes for part in parts)
    counts = {part.component: host_bytes * (part.units - 1) // whole for part in parts}
    left = host_bytes
    # Full pages last: they take what remains.
    for part in sorted(parts, key=lambda part: part.component is ComponentName.FULL):
        room = left // part.unit_bytes
        if part.component is ComponentName.FULL:
            counts[part.component] = room
        else:
            counts[part.component] = min(max(counts[part.component], window_pages), room)
        left -= counts[part.component] * part.unit_bytes
    return counts
