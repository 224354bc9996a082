"""The whole state of one request as tensors by position, for any page size and number of ranks; files are not its own.

A rank's tensor of a paged component is [head group, token, ...] over the component's positions, of a recurrent one
[head group, ...]: what they are called and how they are shaped follows from the model alone.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import gcd, prod
from typing import cast

import numpy as np
import torch

from decode_service.snapshots.memory import ImageMemory
from kv_transfer.plan import Contents, Side, make_plan
from segue.handoff import Part, Terms
from segue.state.coverage import Coverage
from segue.state.layout import Field, Shard, UnitLayout
from segue.state.recurrent import SlotStates
from segue.state.snapshot.payload import PayloadTensor
from segue.state.spec import ComponentName, DType
from segue.state.storage import TORCH_DTYPE, Storage
from segue.state.tables import StateTables

COVERAGE = Coverage("the snapshot", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)
STORED_DTYPE = {DType.FLOAT32: "F32", DType.BFLOAT16: "BF16", DType.FLOAT16: "F16", DType.FLOAT8_E4M3: "F8_E4M3"}
"""Element types as safetensors files name them."""

STAGING_BYTES = 32 << 20
"""Device memory through which pages pass."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ALIGN_BYTES = 64

Payload = Mapping[str, PayloadTensor]
"""The tensors of one rank by name."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class StateImage:
    """The state after `depth` tokens as `ranks` of another engine had it (segue.batch.backups.Backup)."""

    depth: int
    ranks: tuple[Payload, ...]

    @property
    def bytes(self) -> int:
        return sum(tensor.view.nbytes for rank in self.ranks for tensor in rank.values())

    @property
    def copied(self) -> bool:
        """A copy of it is over when the call returns."""
        return True

    @property
    def hosted(self) -> bool:
        """It lies in memory of its own."""
        return False


@dataclass(frozen=True, slots=True)
class TensorForm:
    """What one tensor of an image is called, its element type and shape on a rank."""

    name: str
    dtype: DType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return prod(self.shape) * self.dtype.item_bytes


class StateForm:
    """What the tensors of an image at some depth are, for a model and a number of ranks; pure arithmetic."""

    def __init__(self, layouts: Sequence[UnitLayout], page_tokens: int, window: int | None) -> None:
        """`layouts` are those of any one rank of any worker with this model."""
        COVERAGE.require(layout.component for layout in layouts)
        self._layouts = {layout.component: layout for layout in layouts}
        self._side = Side(tuple(layouts), page_tokens, window)

    def contents(self, depth: int) -> tuple[Contents, ...]:
        """The positions of each component that a state at `depth` needs."""
        plan = make_plan(Terms(depth, held_tokens=0), self._side, self._side)
        return plan.contents(Part.STATE)

    def tensors(self, depth: int, shard: Shard) -> list[TensorForm]:
        """Those of one rank, in component and layer order."""
        return [
            TensorForm(_name(one.component, field), field.tensor.dtype, _shape(layout, field, one))
            for one in self.contents(depth)
            for layout in [replace(self._layouts[one.component], shard=shard)]
            for field in layout.fields
        ]

    def splits(self, tp_size: int) -> bool:
        """Whether so many ranks can share a state of this form."""
        return all(Shard(0, tp_size).splits(layout.total_groups) for layout in self._layouts.values())

    def bytes(self, depth: int, shard: Shard) -> int:
        """Of all tensors of one rank."""
        return sum(tensor.bytes for tensor in self.tensors(depth, shard))


class StateImages:
    """Takes images of what lies in one storage, and puts them there. On the thread that computes, between two steps."""

    def __init__(
        self,
        storage: Storage,
        slots: SlotStates,
        page_tokens: int,
        window: int | None,
        memory: ImageMemory | None = None,
    ) -> None:
        """Images that are taken lie in `memory`; without one nothing bounds them."""
        self.form = StateForm(tuple(storage.layouts.values()), page_tokens, window)
        self._memory = memory or ImageMemory(sys.maxsize)
        self._storage, self._slots, self._page_tokens = storage, slots, page_tokens

    @property
    def tp_size(self) -> int:
        """Ranks of the worker."""
        return len(self._storage.ranks)

    def take(self, tables: StateTables, depth: int) -> StateImage:
        """A copy in host memory of the state after `depth` tokens, which `tables` hold. Rings are folded for it.

        Raises QueueFull or SnapshotCapacity when there is no room for it.
        """
        if tables.slot is not None:
            found = self._slots.materialized(tables.slot).depth
            assert found == depth, f"the recurrent state stands at {found}, the image is of {depth}"
        forms = self._forms(depth)
        with self._memory.reserve(_bytes(forms)) as reserved:
            contents, pairs = self.form.contents(depth), zip(self._storage.ranks, forms, strict=True)
            image = StateImage(depth, tuple(self._taken(rank, tables, contents, tensors) for rank, tensors in pairs))
            reserved.hold(image)
        return image

    def bytes(self, depth: int) -> int:
        """Of an image of a state at that depth, of all ranks."""
        return _bytes(self._forms(depth))

    def put(self, image: StateImage, tables: StateTables) -> None:
        """Fills the units of `tables`, which hold what the state needs; beyond its positions pages are zero."""
        for rank, storage in enumerate(self._storage.ranks):
            shard = Shard(rank, self.tp_size)
            for one in self.form.contents(image.depth):
                layout = storage.layouts[one.component]
                for field in layout.fields:
                    groups = _groups(image.ranks, layout, shard, one, field)
                    view = storage.view(field.tensor.layer, field.tensor.name)
                    if one.component is ComponentName.RECURRENT:
                        assert tables.slot is not None, "recurrent state without a slot"
                        view[tables.slot] = groups.to(view.device)
                    else:
                        self._put_pages(view, _units(tables, one, self._page_tokens), one, groups)

    def _forms(self, depth: int) -> list[list[TensorForm]]:
        """Of the tensors of each rank."""
        return [self.form.tensors(depth, Shard(rank, self.tp_size)) for rank in range(self.tp_size)]

    def _taken(
        self, storage: Storage, tables: StateTables, contents: Sequence[Contents], forms: Sequence[TensorForm]
    ) -> Payload:
        tensors = iter(zip(forms, _host_tensors(forms), strict=True))
        found = {}
        for one in contents:
            for field in storage.layouts[one.component].fields:
                view, (form, tensor) = storage.view(field.tensor.layer, field.tensor.name), next(tensors)
                if one.component is ComponentName.RECURRENT:
                    assert tables.slot is not None, "recurrent state without a slot"
                    tensor.copy_(view[tables.slot])
                else:
                    self._take_pages(view, _units(tables, one, self._page_tokens), one, tensor)
                found[form.name] = _payload(form, tensor)
        return found

    def _take_pages(self, view: torch.Tensor, units: Sequence[int], one: Contents, groups: torch.Tensor) -> None:
        """[page, group, token, ...] of some pages as [group, position, ...] in host memory."""
        tokens, (source, found) = self._page_tokens, _words(view, groups)
        index = torch.tensor(units, dtype=torch.int64, device=view.device)
        for number, count, start, stop in _runs(one, tokens, _staged(source)):
            place = found.narrow(1, number * tokens + start - one.start % tokens, stop - start)
            if stop - start < count * tokens:
                place.copy_(source[units[number], :, start:stop])
                continue
            target, chosen = place.unflatten(1, (count, tokens)).transpose(0, 1), index[number : number + count]
            if source.is_cuda:
                target.copy_(source.index_select(0, chosen))
            else:
                torch.index_select(source, 0, chosen, out=target)

    def _put_pages(self, view: torch.Tensor, units: Sequence[int], one: Contents, groups: torch.Tensor) -> None:
        """The other way round; positions of these pages that are not in `one` become zero."""
        tokens, (target, bits) = self._page_tokens, _words(view, groups)
        index = torch.tensor(units, dtype=torch.int64, device=view.device)
        for number, count, start, stop in _runs(one, tokens, _staged(target)):
            place = bits.narrow(1, number * tokens + start - one.start % tokens, stop - start)
            if stop - start < count * tokens:
                page = target[units[number]]
                page.zero_()
                page[:, start:stop] = place.to(view.device)
            else:
                pages = place.unflatten(1, (count, tokens)).transpose(0, 1)
                target.index_copy_(0, index[number : number + count], pages.to(view.device))


def _staged(pages: torch.Tensor) -> int:
    """How many pages pass at once: on a device they need memory of it beside the arena's."""
    return max(1, STAGING_BYTES // pages[0].nbytes) if pages.is_cuda else len(pages)


def _runs(one: Contents, tokens: int, count_max: int) -> list[tuple[int, int, int, int]]:
    """Neighbouring pages that `one` covers alike: number of the first, how many, and what is covered, as offsets in
    the first one from its first token on: a run of whole pages goes beyond that page.
    """
    if one.start == one.stop:
        return []
    first, last = one.start // tokens, (one.stop - 1) // tokens
    head, tail = one.start % tokens, (one.stop - 1) % tokens + 1
    if first == last:
        return [(0, 1, head, tail)]
    runs = [(0, 1, head, tokens)] if head else []
    begun = len(runs)
    end = last - first + (tail == tokens)
    for number in range(begun, end, count_max):
        count = min(count_max, end - number)
        runs.append((number, count, 0, count * tokens))
    if tail != tokens:
        runs.append((last - first, 1, 0, tail))
    return runs


def _groups(ranks: Sequence[Payload], layout: UnitLayout, shard: Shard, one: Contents, field: Field) -> torch.Tensor:
    """This rank's head groups of one tensor, each from the first rank of the image that has it: [group, ...]."""
    name = _name(one.component, field)
    total = layout.total_groups
    first = shard.first_group(total)
    found = []
    group, end = first, first + shard.groups(total)
    while group < end:
        holder = Shard(0, len(ranks)).holders(total, group).start
        source = Shard(holder, len(ranks))
        form = replace(layout, shard=source)
        tensor = _tensor(ranks[holder][name], field.tensor.dtype, _shape(form, field, one))
        start = group - source.first_group(total)
        found.append(tensor[start : start + end - group])
        group += len(found[-1])
    return found[0] if len(found) == 1 else torch.cat([_bits(part) for part in found]).view(found[0].dtype)


def _units(tables: StateTables, one: Contents, page_tokens: int) -> list[int]:
    """The pages of `tables` that meet the positions of `one`."""
    if one.start == one.stop:
        return []
    table: Sequence[int | None] = tables.full if one.component is ComponentName.FULL else tables.window
    units = table[one.start // page_tokens : (one.stop - 1) // page_tokens + 1]
    assert None not in units, f"a page of {one.component} that the state needs is not held"
    return cast(list[int], list(units))


def _name(component: ComponentName, field: Field) -> str:
    return f"{component.value}.{field.tensor.layer}.{field.tensor.name}"


def _shape(layout: UnitLayout, field: Field, one: Contents) -> tuple[int, ...]:
    if one.component is ComponentName.RECURRENT:
        return (layout.groups, *field.tensor.shape)
    return (layout.groups, one.stop - one.start, *field.tensor.shape)


def _host_tensors(forms: Sequence[TensorForm]) -> list[torch.Tensor]:
    """Memory of the host for such tensors, in one piece: the system has it ready many times sooner than small ones."""
    starts = [0, *accumulate(-(-form.bytes // _ALIGN_BYTES) * _ALIGN_BYTES for form in forms)]
    # NumPy asks for large pages, torch does not.
    memory = torch.from_numpy(np.empty(starts[-1], dtype=np.uint8))
    return [
        memory[start : start + form.bytes].view(TORCH_DTYPE[form.dtype]).view(form.shape)
        for form, start in zip(forms, starts, strict=False)
    ]


def _words(pages: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[page, group, token, ...] and [group, position, ...] as integers as wide as a token's row allows in both.

    Torch moves few wide elements fastest, and some types not at all.
    """
    if pages.dim() == 3:
        pages, groups = pages.unsqueeze(-1), groups.unsqueeze(-1)
    size = pages.element_size()
    steps = [step * size for tensor in (pages, groups) for step in (tensor.shape[-1], *tensor.stride()[:-1])]
    width = gcd(max(_WORDS), pages.data_ptr(), groups.data_ptr(), *steps)
    return pages.view(_WORDS[width]), groups.view(_WORDS[width])


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same in integers where torch cannot join elements of that type."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def _bytes(ranks: Sequence[Sequence[TensorForm]]) -> int:
    return sum(form.bytes for forms in ranks for form in forms)


def _payload(form: TensorForm, tensor: torch.Tensor) -> PayloadTensor:
    """Of a tensor that is contiguous in host memory, and nobody else's."""
    data = tensor.view(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, dtype=np.uint8)
    return PayloadTensor(form.name, STORED_DTYPE[form.dtype], form.shape, data)


def _tensor(payload: PayloadTensor, dtype: DType, shape: tuple[int, ...]) -> torch.Tensor:
    view = payload.view
    if not view.nbytes:
        return torch.empty(shape, dtype=TORCH_DTYPE[dtype])
    return torch.frombuffer(view, dtype=torch.uint8).view(TORCH_DTYPE[dtype]).view(shape)
