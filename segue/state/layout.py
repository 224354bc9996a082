"""Where each state tensor lies inside a page or a slot, in bytes; pure arithmetic, no tensors.

A page is `[head group, layer tensor, token, dim]`, a slot is `[head group, layer tensor, ...]`: head groups outermost,
so that the heads of one tensor-parallel rank are one run of bytes, and everything a transfer moves is few large
blocks.
"""

import math
from dataclasses import dataclass

from segue.state.spec import ComponentName, ComponentSpec, ModelState, StateTensor

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """Which tensor-parallel rank's part of the state a layout describes."""

    tp_rank: int = 0
    tp_size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.tp_rank < self.tp_size, self

    def groups(self, total: int) -> int:
        """How many of `total` head groups this rank holds."""
        assert total % self.tp_size == 0, f"{total} head groups do not split over {self.tp_size} ranks"
        return total // self.tp_size


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor within a unit: it starts `offset_bytes` after each head group's start."""

    tensor: StateTensor
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """Layout of one unit (a page of `tokens` tokens, or a slot) of one component on one rank."""

    component: ComponentName
    tokens: int
    groups: int
    group_bytes: int
    fields: tuple[Field, ...]
    shard: Shard

    @property
    def unit_bytes(self) -> int:
        return self.groups * self.group_bytes

    @staticmethod
    def of(spec: ComponentSpec, page_tokens: int, shard: Shard) -> "UnitLayout":
        """Lays the component's tensors out one after another, each aligned to 64 bytes.

        The head groups of a paged component lie a whole number of every tensor's vectors apart, over the borders of
        pages too: so kernels can number the vectors of any one tensor in all pages.
        """
        tokens = page_tokens if spec.paged else 1
        fields, offset = [], 0
        for tensor in spec.tensors:
            fields.append(Field(tensor, offset))
            offset += _aligned(tensor.group_bytes * tokens, ALIGN_BYTES)
        vectors = {tensor.group_bytes for tensor in spec.tensors} if spec.paged else set()
        group_bytes = _aligned(offset, math.lcm(ALIGN_BYTES, *vectors))
        return UnitLayout(spec.name, tokens, shard.groups(spec.tensors[0].groups), group_bytes, tuple(fields), shard)


def layouts(state: ModelState, page_tokens: int, shard: Shard) -> tuple[UnitLayout, ...]:
    """One layout per component, in component order."""
    return tuple(UnitLayout.of(spec, page_tokens, shard) for spec in state.components)


def _aligned(count: int, unit: int) -> int:
    return -(-count // unit) * unit
