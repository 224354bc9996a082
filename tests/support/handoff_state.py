"""State of a made-up model with all three components, filled so that every byte is known from request and position."""

import math
import zlib
from collections.abc import Sequence

import torch

from segue.handoff import Part, UnitRow
from segue.state.layout import Shard, UnitLayout, layouts
from segue.state.pool import Owner, Pool
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.state.storage import TORCH_DTYPE, SharedStorage, Storage

FULL, WINDOW, RECURRENT = ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT


def model_state(window: int | None = 6, width: int = 8, *, recurrent: bool = True) -> ModelState:
    """Two full layers, one of them in 8 bits with scales, one sliding and one recurrent; dims and dtypes differ on
    purpose.
    """
    tensors = [StateTensor(1, name, FULL, 2, (width,), DType.FLOAT32) for name in ("k", "v")]
    for name in ("k", "v"):
        tensors.append(StateTensor(3, name, FULL, 2, (width,), DType.FLOAT8_E4M3))
        tensors.append(StateTensor(3, f"{name}_scale", FULL, 2, (1,), DType.FLOAT32))
    if window is not None:
        tensors += [StateTensor(0, name, WINDOW, 4, (6,), DType.BFLOAT16, window) for name in ("k", "v")]
    if recurrent:
        tensors.append(StateTensor(2, "conv", RECURRENT, 2, (3, 5), DType.BFLOAT16))
        tensors.append(StateTensor(2, "matrix", RECURRENT, 2, (width, 4), DType.FLOAT32))
    return ModelState.of(tensors)


def make_storage(
    state: ModelState, page_tokens: int, units: int, shard: Shard | None = None
) -> tuple[tuple[UnitLayout, ...], Storage, dict[ComponentName, Pool]]:
    """Layouts, storage full of another tenant's bytes, and pools of `units` each."""
    made = layouts(state, page_tokens, shard or Shard())
    storage = Storage(made, {layout.component: units for layout in made}, torch.device("cpu"))
    storage.arena.fill_(0xA5)
    return made, storage, {layout.component: Pool(layout.component.value, units) for layout in made}


def content(tensor: StateTensor, request: str, depth: int) -> torch.Tensor:
    """What a tensor holds: [depth, groups, *shape] of a paged one, [groups, *shape] of a slot after `depth` tokens."""
    paged = tensor.component is not RECURRENT
    name = f"{request} {tensor.layer} {tensor.name} {'' if paged else depth}"
    shape = (depth, tensor.groups, *tensor.shape) if paged else (tensor.groups, *tensor.shape)
    # Each element depends on its own number alone, so a longer prompt begins like a shorter one.
    numbers = torch.arange(math.prod(shape)).reshape(shape) * 2654435761 + zlib.crc32(name.encode())
    if tensor.dtype is DType.FLOAT8_E4M3:
        # All codes but those of NaN, which equals nothing.
        return (numbers % 65521 % 0x7F).to(torch.uint8).view(torch.float8_e4m3fn)
    return (numbers % 65521 / 7).to(TORCH_DTYPE[tensor.dtype])


def shared_storage(state: ModelState, page_tokens: int, units: int, tp: int) -> Storage:
    """Storage that so many ranks share, full of another tenant's bytes."""
    made = layouts(state, page_tokens, Shard(0, tp))
    counts = {layout.component: units for layout in made}
    return SharedStorage(made, counts, lambda size: [torch.full((size,), 0xA5, dtype=torch.uint8) for _ in range(tp)])


def write_pages(storage: Storage, row: UnitRow, request: str, start: int, stop: int) -> None:
    """Fills positions [start, stop) of a paged component, on every rank, where their pages stand in `row`."""
    for rank in storage.ranks:
        layout = rank.layouts[row.component]
        groups = slice(layout.first_group, layout.first_group + layout.groups)
        for field in layout.fields:
            tensor, tokens = field.tensor, layout.tokens
            view, values = rank.view(tensor.layer, tensor.name), content(tensor, request, stop)
            for position in range(start, stop):
                page = position // tokens - row.first
                if page >= 0 and (unit := row.units[page]) is not None:
                    view[unit, :, position % tokens] = values[position, groups]


def write_slot(storage: Storage, slot: int, request: str, depth: int) -> None:
    """Fills a slot with the state after `depth` tokens, on every rank."""
    for rank in storage.ranks:
        layout = rank.layouts[RECURRENT]
        groups = slice(layout.first_group, layout.first_group + layout.groups)
        for field in layout.fields:
            rank.view(field.tensor.layer, field.tensor.name)[slot] = content(field.tensor, request, depth)[groups]


def shows(storage: Storage, row: UnitRow, request: str, start: int, stop: int) -> bool:
    """Whether a row holds exactly what `request` has there: positions [start, stop), or the slot after `stop`."""
    layout = storage.layouts[row.component]
    for field in layout.fields:
        view, values = storage.view(field.tensor.layer, field.tensor.name), content(field.tensor, request, stop)
        if row.component is RECURRENT:
            if not torch.equal(view[row.units[0]], values):
                return False
            continue
        for position in range(start, stop):
            unit = row.units[position // layout.tokens - row.first]
            if not torch.equal(view[unit, :, position % layout.tokens], values[position]):
                return False
    return True


def take_row(pools: dict[ComponentName, Pool], part: Part, component: ComponentName, first: int, stop: int) -> UnitRow:
    """Units for pages [first, stop), held by a request."""
    return UnitRow(part, component, first, tuple(pools[component].alloc(stop - first)))


def free_rows(pools: dict[ComponentName, Pool], rows: Sequence[UnitRow]) -> None:
    """Gives held rows back."""
    for row in rows:
        pools[row.component].free([unit for unit in row.units if unit is not None], Owner.HELD)
