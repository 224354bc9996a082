"""The one arena of a process and typed views into it; never decides who owns a page or a slot."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch

from segue.state.coverage import Coverage
from segue.state.layout import Field, UnitLayout
from segue.state.regions import Regions
from segue.state.spec import ComponentName, DType

COVERAGE = Coverage("the storage", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)
TORCH_DTYPE: dict[DType, torch.dtype] = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.FLOAT8_E4M3: torch.float8_e4m3fn,
}


class Storage:
    """Page-major memory of all components, cut from one byte arena that is allocated (and registered) once for life.

    Of a worker whose ranks share its state this is what one rank has.
    """

    cpu_copy_carries_mamba: ClassVar[bool] = False
    """Whether the host copy of a request's pages has its recurrent state in it. Here slots are copied by themselves."""

    def __init__(
        self,
        layouts: Sequence[UnitLayout],
        counts: Mapping[ComponentName, int],
        device: torch.device,
        arena: torch.Tensor | None = None,
    ) -> None:
        """`counts`: units per component, sink included. Memory starts zeroed; `arena` gives it, uint8 [arena_bytes]."""
        COVERAGE.require(layout.component for layout in layouts)
        self.layouts = {layout.component: layout for layout in layouts}
        self._counts = dict(counts)
        self._base: dict[ComponentName, int] = {}
        for number, layout in enumerate(layouts):
            self._base[layout.component] = arena_bytes(layouts[:number], counts)
        total = arena_bytes(layouts, counts)
        self.arena = torch.zeros(total, dtype=torch.uint8, device=device) if arena is None else arena
        assert self.arena.numel() == total, f"an arena of {self.arena.numel()} bytes for {total}"
        self.regions = Regions([self.arena])
        """All of the worker's."""
        self._views: dict[tuple[int, str], torch.Tensor] = {
            (field.tensor.layer, field.tensor.name): self._view(layout, field)
            for layout in layouts
            for field in layout.fields
        }

    @property
    def ranks(self) -> "tuple[Storage, ...]":
        """What each rank of the worker has of its state, in rank order."""
        return (self,)

    def units(self, component: ComponentName) -> int:
        """How many units of a component there are, sink included."""
        return self._counts[component]

    def view(self, layer: int, name: str) -> torch.Tensor:
        """Strided view of one state tensor over all units.

        Paged: [page, head group, token, *shape]; slot: [slot, head group, *shape].
        """
        return self._views[layer, name]

    def unit_bytes(self, component: ComponentName, unit: int) -> torch.Tensor:
        """The contiguous bytes of what this rank has of a page or slot, uint8 [unit_bytes]."""
        layout = self.layouts[component]
        assert 0 <= unit < self._counts[component], f"{component} has no unit {unit}"
        start = self._base[component] + unit * layout.unit_bytes
        return self.arena[start : start + layout.unit_bytes]

    def zero(self, component: ComponentName, unit: int) -> None:
        """Clears one unit at once (never deferred: a deferred clear could run after a restore)."""
        self.unit_bytes(component, unit).zero_()

    def copy(self, component: ComponentName, source: int, target: int) -> None:
        """Copies one unit's bytes, in the order of what was computed before and after."""
        self.unit_bytes(component, target).copy_(self.unit_bytes(component, source))

    def _view(self, layout: UnitLayout, field: Field) -> torch.Tensor:
        dtype = TORCH_DTYPE[field.tensor.dtype]
        size = field.tensor.dtype.item_bytes
        base = self._base[layout.component] + field.offset_bytes
        assert (base | layout.unit_bytes | layout.group_bytes) % size == 0
        inner = (
            (layout.tokens, *field.tensor.shape)
            if field.tensor.component is not ComponentName.RECURRENT
            else field.tensor.shape
        )
        strides, step = [], 1
        for count in reversed(inner):
            strides.append(step)
            step *= count
        typed = self.arena.view(dtype)
        return typed.as_strided(
            (self._counts[layout.component], layout.groups, *inner),
            (layout.unit_bytes // size, layout.group_bytes // size, *reversed(strides)),
            typed.storage_offset() + base // size,
        )


class SharedStorage(Storage):
    """Rank 0's storage of a worker whose ranks share its state: each rank has a part of every unit, in a region of its
    own.

    Rank 0 manages all of them; `arena` is its own. The other ranks touch theirs within forwards alone.
    """

    def __init__(
        self,
        layouts: Sequence[UnitLayout],
        counts: Mapping[ComponentName, int],
        allocate: Callable[[int], Sequence[torch.Tensor]],
    ) -> None:
        """`layouts` are rank 0's; `allocate` gives every rank zeroed memory of so many bytes, uint8, in rank order."""
        of_ranks = tuple(zip(*(layout.of_ranks for layout in layouts), strict=True))
        regions = allocate(arena_bytes(layouts, counts))
        super().__init__(layouts, counts, regions[0].device, regions[0])
        self.regions = Regions(regions)
        self._ranks = tuple(
            Storage(forms, counts, region.device, region) for forms, region in zip(of_ranks, regions, strict=True)
        )

    @property
    def ranks(self) -> tuple[Storage, ...]:
        return self._ranks

    def zero(self, component: ComponentName, unit: int) -> None:
        for rank in self._ranks:
            rank.zero(component, unit)

    def copy(self, component: ComponentName, source: int, target: int) -> None:
        for rank in self._ranks:
            rank.copy(component, source, target)


def arena_bytes(layouts: Sequence[UnitLayout], counts: Mapping[ComponentName, int]) -> int:
    """Bytes of so many units of each component, on one rank."""
    return sum(layout.unit_bytes * counts[layout.component] for layout in layouts)
