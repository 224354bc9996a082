"""Backend `cpu_tensor`: each request's tensors, of all its components, cut from one arena; counted in bytes."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from decode_service.retraction.extents import Extent, Extents, cut
from decode_service.retraction.memory import host_arena
from segue.state.pool import PoolCounts
from segue.state.spec import ComponentName


class CpuTensors:
    """Room is found while enough bytes are free, wherever they are: a tensor may be in pieces, and a unit too."""

    def __init__(self, host_bytes: int, unit_bytes: Mapping[ComponentName, int], device: torch.device) -> None:
        """Raises ConfigError when the memory is not to be had."""
        self.arena = host_arena(host_bytes, device)
        self._unit_bytes = dict(unit_bytes)
        self._extents = Extents(self.arena.numel())

    def alloc(self, units: Sequence[tuple[ComponentName, int]]) -> list[tuple[Extent, ...]] | None:
        lengths = [count * self._unit_bytes[component] for component, count in units]
        extents = self._extents.alloc(sum(lengths))
        return None if extents is None else cut(extents, lengths)

    def free(self, component: ComponentName, extents: Sequence[Extent]) -> None:
        self._extents.free(extents)

    def counts(self) -> tuple[PoolCounts, ...]:
        capacity, free = self._extents.capacity, self._extents.free_bytes
        return (PoolCounts("host_bytes", capacity, free, capacity - free, sink=0),)

    def check(self, held: Iterable[tuple[ComponentName, Sequence[Extent]]]) -> None:
        self._extents.check([extent for _, extents in held for extent in extents])
