"""What lies past the end of a page is cleared in every tensor, however tensors of one size lie among others."""

import pytest
import torch

from kv_transfer.digest import zero_tail
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from tests.support.handoff_state import FULL, make_storage, shared_storage

PAGE, PAGE_TOKENS, USED = 2, 8, 3


@pytest.mark.parametrize("dims", [(16,), (16, 16), (16, 16, 16), (16, 2, 16, 2, 16, 2), (16, 16, 32, 16), (4, 8, 4, 4)])
@pytest.mark.parametrize("groups", [1, 3])
def test_tails_are_cleared_in_every_tensor_and_nothing_else_is(dims: tuple[int, ...], groups: int) -> None:
    tensors = [
        StateTensor(layer, "k", ComponentName.FULL, groups, (dim,), DType.FLOAT32) for layer, dim in enumerate(dims)
    ]
    _, storage, _ = make_storage(ModelState.of(tensors), PAGE_TOKENS, 4)
    storage.arena.fill_(1)
    expected = storage.arena.clone()
    zero_tail(storage, FULL, PAGE, USED)
    cleared = storage.arena != expected
    wanted = torch.zeros_like(cleared)
    start = storage.unit_bytes(FULL, PAGE).storage_offset()
    for group in range(groups):
        for field in storage.layouts[FULL].fields:
            size = field.tensor.group_bytes
            first = start + group * storage.layouts[FULL].group_bytes + field.offset_bytes
            wanted[first + USED * size : first + PAGE_TOKENS * size] = True
    assert torch.equal(cleared, wanted)
    assert not storage.arena[wanted].any()


def test_a_full_page_is_left_as_it_is() -> None:
    tensors = [StateTensor(0, "k", ComponentName.FULL, 1, (16,), DType.FLOAT32)]
    _, storage, _ = make_storage(ModelState.of(tensors), PAGE_TOKENS, 4)
    zero_tail(storage, FULL, PAGE, PAGE_TOKENS)
    assert bool((storage.arena == 0xA5).all())


def test_tails_are_cleared_on_every_rank() -> None:
    state = ModelState.of([StateTensor(0, "k", ComponentName.FULL, 4, (16,), DType.FLOAT32)])
    storage = shared_storage(state, PAGE_TOKENS, 4, 2)
    zero_tail(storage, FULL, PAGE, USED)
    for rank in storage.ranks:
        view = rank.view(0, "k")
        assert not view[PAGE, :, USED:].any()
        assert view[PAGE, :, :USED].all()
        assert view[PAGE - 1].all()
