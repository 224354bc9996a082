"""Where each state tensor lies inside a page or a slot, in bytes; pure arithmetic, no tensors.

A page is `[head group, layer tensor, token, dim]`, a slot is `[head group, layer tensor, ...]`: head groups outermost,
so that the heads of one tensor-parallel rank are one run of bytes, and everything a transfer moves is few large
blocks.
"""

import math
from dataclasses import dataclass, replace

from segue.state.spec import ComponentName, ComponentSpec, ModelState, StateTensor

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """Which tensor-parallel rank's part of the state a layout describes."""

    tp_rank: int = 0
    tp_size: int = 1

    def __post_init__(self) -> None:
        assert 0 <= self.tp_rank < self.tp_size, self

    def splits(self, total: int) -> bool:
        """Whether `total` head groups can be dealt out: each rank gets as many, or each group as many ranks."""
        return total % self.tp_size == 0 or self.tp_size % total == 0

    def groups(self, total: int) -> int:
        """How many of `total` head groups this rank holds. Where there are fewer than ranks, neighbours share one."""
        assert self.splits(total), f"{total} head groups do not split over {self.tp_size} ranks"
        return max(1, total // self.tp_size)

    def first_group(self, total: int) -> int:
        """The global number of the first of them."""
        return self.tp_rank * total // self.tp_size

    def holders(self, total: int, group: int) -> range:
        """The ranks that hold that one of `total` head groups."""
        share = max(1, self.tp_size // total)
        first = group * self.tp_size // total
        return range(first, first + share)

    def leads(self, total: int) -> bool:
        """Whether this rank is the first of those that share its groups."""
        return self.tp_rank == self.holders(total, self.first_group(total)).start

    def span(self, total: int) -> slice:
        """This rank's part of `total` like things that nobody shares, as even as it goes."""
        return slice(self.tp_rank * total // self.tp_size, (self.tp_rank + 1) * total // self.tp_size)


ONE_RANK = Shard()
"""All of the state."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor within a unit: it starts `offset_bytes` after each head group's start."""

    tensor: StateTensor
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """Layout of one unit (a page of `tokens` tokens, or a slot) of one component on one rank.

    `groups` of `total_groups` head groups are in it.
    """

    component: ComponentName
    tokens: int
    total_groups: int
    group_bytes: int
    fields: tuple[Field, ...]
    shard: Shard

    @property
    def of_ranks(self) -> tuple["UnitLayout", ...]:
        """The layouts of all ranks of the worker, in rank order."""
        size = self.shard.tp_size
        return tuple(replace(self, shard=Shard(rank, size)) for rank in range(size))

    @property
    def groups(self) -> int:
        return self.shard.groups(self.total_groups)

    @property
    def first_group(self) -> int:
        """The global number of this rank's first head group."""
        return self.shard.first_group(self.total_groups)

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
        return UnitLayout(spec.name, tokens, spec.tensors[0].groups, group_bytes, tuple(fields), shard)


def layouts(state: ModelState, page_tokens: int, shard: Shard) -> tuple[UnitLayout, ...]:
    """One layout per component, in component order."""
    return tuple(UnitLayout.of(spec, page_tokens, shard) for spec in state.components)


def _aligned(count: int, unit: int) -> int:
    return -(-count // unit) * unit
