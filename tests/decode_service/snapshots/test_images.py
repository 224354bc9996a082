"""An image has every byte of a state and none beside, for any page size, element type and number of ranks."""

import pytest
import torch

from decode_service.snapshots.images import StateImages
from kv_transfer.digest import digest_contents
from kv_transfer.plan import Contents
from segue.handoff import Part, StateDigest, UnitRow
from segue.ids import Page, Slot
from segue.state.recurrent import SlotStates
from segue.state.spec import DType, ModelState, StateTensor
from segue.state.storage import Storage
from segue.state.tables import StateTables
from tests.support.handoff_state import FULL, RECURRENT, WINDOW, make_storage, shared_storage

W, UNITS, SLOT = 6, 40, Slot(5)
BF16, FP8, FLOAT = DType.BFLOAT16, DType.FLOAT8_E4M3, DType.FLOAT32


def model(dim: int, dtype: DType) -> ModelState:
    """Vectors of any size, scales without one, and a slot beside them."""
    return ModelState.of(
        [
            StateTensor(0, "k", FULL, 2, (dim,), dtype),
            StateTensor(0, "scale", FULL, 2, (), FLOAT),
            StateTensor(1, "k", WINDOW, 2, (dim,), dtype, W),
            StateTensor(2, "conv", RECURRENT, 2, (dim, 3), BF16),
            StateTensor(2, "matrix", RECURRENT, 2, (dim, dim), FLOAT),
        ]
    )


class Place:
    """A request's tables in a storage whose every byte is random."""

    def __init__(self, state: ModelState, page_tokens: int, depth: int, tp: int, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.depth = depth
        self.storage: Storage = (
            shared_storage(state, page_tokens, UNITS, tp) if tp > 1 else make_storage(state, page_tokens, UNITS)[1]
        )
        for region in self.storage.regions.tensors:
            region.random_(generator=random)
        slots = SlotStates(self.storage, UNITS)
        slots.receive(SLOT, depth)
        self.images = StateImages(self.storage, slots, page_tokens, W)
        pages = -(-depth // page_tokens)
        first = max(0, depth - W) // page_tokens
        full, window = ((torch.randperm(UNITS - 1, generator=random) + 1).tolist() for _ in range(2))
        self.tables = StateTables(
            full=[Page(page) for page in full[:pages]],
            window=[None] * first + [Page(page) for page in window[: pages - first]],
            window_first=first,
            slot=SLOT,
        )

    def digests(self) -> tuple[StateDigest, ...]:
        rows = [
            UnitRow(Part.STATE, FULL, 0, tuple(self.tables.full)),
            UnitRow(Part.STATE, WINDOW, 0, tuple(self.tables.window)),
            UnitRow(Part.STATE, RECURRENT, 0, (SLOT,)),
        ]
        spans = [(FULL, 0), (WINDOW, max(0, self.depth - W)), (RECURRENT, 0)]
        return digest_contents(self.storage, rows, [Contents(name, first, self.depth) for name, first in spans])


@pytest.mark.parametrize("dim", [1, 3, 4, 16])
@pytest.mark.parametrize("dtype", [BF16, FP8, FLOAT])
@pytest.mark.parametrize(("ours", "theirs"), [(1, 4), (4, 1), (3, 16), (16, 3)])
@pytest.mark.parametrize("depth", [1, 7, 32])
def test_a_state_is_the_same_in_other_pages(dim: int, dtype: DType, ours: int, theirs: int, depth: int) -> None:
    source, target = (Place(model(dim, dtype), size, depth, 1, seed) for seed, size in enumerate((ours, theirs)))
    whole = source.digests()
    assert target.digests() != whole
    image = source.images.take(source.tables, depth)
    for region in source.storage.regions.tensors:
        region.random_()
    target.images.put(image, target.tables)
    assert target.digests() == whole


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1), (2, 4), (4, 2)])
def test_a_state_is_the_same_on_other_numbers_of_ranks(ours: int, theirs: int) -> None:
    source, target = (Place(model(4, BF16), 4, 21, tp, seed) for seed, tp in enumerate((ours, theirs)))
    if ours > 2:
        # Ranks that share a head group have the same of it.
        target.images.put(source.images.take(source.tables, 21), target.tables)
        source, target = target, source
    whole = source.digests()
    target.images.put(source.images.take(source.tables, 21), target.tables)
    assert target.digests() == whole


def test_nothing_beside_the_tables_is_written() -> None:
    source, target = (Place(model(3, BF16), 4, 9, 1, seed) for seed in range(2))
    image = source.images.take(source.tables, 9)
    before = [region.clone() for region in target.storage.regions.tensors]
    target.images.put(image, target.tables)
    units = {(FULL, page) for page in target.tables.full} | {(RECURRENT, SLOT)}
    units |= {(WINDOW, page) for page in target.tables.window if page is not None}
    for component, unit in units:
        target.storage.unit_bytes(component, unit).zero_()
    changed = [region.clone() for region in target.storage.regions.tensors]
    for region, old in zip(target.storage.regions.tensors, before, strict=True):
        region.copy_(old)
    for component, unit in units:
        target.storage.unit_bytes(component, unit).zero_()
    for region, found in zip(target.storage.regions.tensors, changed, strict=True):
        assert torch.equal(region, found)
