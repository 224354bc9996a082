"""Layouts and storage: every tensor of a unit has bytes of its own, and a unit is one run."""

import pytest
import torch

from benchmarks.state_shapes import STATE_SHAPES
from segue.errors import CheckpointError
from segue.ids import Slot
from segue.state.layout import ALIGN_BYTES, Shard, layouts
from segue.state.recurrent import SlotStates
from segue.state.spec import ComponentName, DType, ModelState, StateTensor, uses_ssm_state
from segue.state.storage import Storage


def small_state(window: int = 6) -> ModelState:
    """Two attention layers, one sliding, one recurrent layer with conv and matrix of different dtypes."""
    full, win, rec = ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT
    return ModelState.of(
        [
            StateTensor(0, "k", full, 2, (8,), DType.FLOAT32),
            StateTensor(0, "v", full, 2, (4,), DType.FLOAT32),
            StateTensor(1, "k", win, 2, (8,), DType.BFLOAT16, window),
            StateTensor(1, "v", win, 2, (8,), DType.BFLOAT16, window),
            StateTensor(2, "matrix", rec, 3, (2, 5, 4), DType.FLOAT32),
            StateTensor(2, "conv", rec, 3, (7, 3), DType.BFLOAT16),
            StateTensor(3, "k", full, 2, (8,), DType.FLOAT32),
            StateTensor(3, "v", full, 2, (4,), DType.FLOAT32),
        ]
    )


def build(page_tokens: int) -> tuple[ModelState, Storage]:
    state = small_state()
    counts = dict.fromkeys(ComponentName, 5)
    return state, Storage(layouts(state, page_tokens, Shard()), counts, torch.device("cpu"))


@pytest.mark.parametrize("page_tokens", [1, 3, 64])
def test_every_element_of_every_view_has_bytes_of_its_own(page_tokens: int) -> None:
    state, storage = build(page_tokens)
    names = [(t.layer, t.name) for spec in state.components for t in spec.tensors]
    total = 0
    for value, (layer, name) in enumerate(names, start=1):
        storage.view(layer, name).fill_(value)
        total += storage.view(layer, name).numel()
    for value, (layer, name) in enumerate(names, start=1):
        view = storage.view(layer, name)
        assert bool((view == value).all()), f"{name} of layer {layer} was overwritten by another tensor"
    assert total * 2 <= storage.arena.numel()


@pytest.mark.parametrize("page_tokens", [1, 3, 64])
def test_a_unit_is_one_run_of_bytes_that_holds_all_its_tensors(page_tokens: int) -> None:
    state, storage = build(page_tokens)
    for spec in state.components:
        storage.unit_bytes(spec.name, 2).fill_(255)
        for tensor in spec.tensors:
            view = storage.view(tensor.layer, tensor.name)
            assert bool(torch.isnan(view[2]).all()), "0xff.. is NaN in every float type: the whole tensor is in the run"
            assert not bool(torch.isnan(view[1]).any())
            assert not bool(torch.isnan(view[3]).any())


def test_head_groups_are_outermost_so_a_rank_s_heads_are_one_run() -> None:
    _, storage = build(4)
    layout = storage.layouts[ComponentName.FULL]
    run = storage.unit_bytes(ComponentName.FULL, 1)[: layout.group_bytes]
    run.fill_(255)
    for layer in (0, 3):
        assert bool(torch.isnan(storage.view(layer, "k")[1, 0]).all())
        assert not bool(torch.isnan(storage.view(layer, "k")[1, 1]).any())


@pytest.mark.parametrize("page_tokens", [1, 3, 64])
@pytest.mark.parametrize("dim", [1, 15, 24, 80, 96, 128, 256])
def test_head_groups_lie_whole_vectors_of_every_tensor_apart(dim: int, page_tokens: int) -> None:
    tensors = [
        StateTensor(layer, name, ComponentName.FULL, 2, (size,), dtype)
        for layer in range(3)
        for name, size, dtype in (
            ("k", dim, DType.FLOAT8_E4M3),
            ("k_scale", 1, DType.FLOAT32),
            ("v", 7, DType.BFLOAT16),
        )
    ]
    (layout,) = layouts(ModelState.of(tensors), page_tokens, Shard())
    needed = sum(tensor.group_bytes for tensor in tensors) * page_tokens
    assert all(layout.group_bytes % tensor.group_bytes == 0 for tensor in tensors)
    assert all(field.offset_bytes % ALIGN_BYTES == 0 for field in layout.fields)
    assert layout.group_bytes % ALIGN_BYTES == 0
    assert layout.group_bytes >= needed


def test_a_shard_holds_its_part_of_the_groups() -> None:
    state = ModelState.of([StateTensor(0, "k", ComponentName.FULL, 4, (8,), DType.FLOAT32)])
    whole, half = layouts(state, 16, Shard())[0], layouts(state, 16, Shard(1, 2))[0]
    assert half.groups == 2
    assert half.unit_bytes * 2 == whole.unit_bytes


def test_two_windows_in_one_model_are_refused_by_name() -> None:
    tensors = [StateTensor(i, "k", ComponentName.WINDOW, 1, (8,), DType.FLOAT32, w) for i, w in enumerate((7, 15))]
    with pytest.raises(CheckpointError, match="different windows"):
        ModelState.of(tensors)


def test_uses_ssm_state_is_true_exactly_with_a_recurrent_component() -> None:
    assert uses_ssm_state(small_state())
    assert not uses_ssm_state(ModelState.of([StateTensor(0, "k", ComponentName.FULL, 1, (8,), DType.FLOAT32)]))


def test_a_fresh_slot_is_zeroed_when_it_is_started_not_later() -> None:
    _, storage = build(4)
    slots = SlotStates(storage, 5)
    storage.view(2, "matrix")[3] = 1.0
    slots.start(Slot(3))
    assert not bool(storage.view(2, "matrix")[3].any())


def test_a_received_slot_is_never_cleared() -> None:
    _, storage = build(4)
    slots = SlotStates(storage, 5)
    storage.view(2, "matrix")[3] = 1.0
    slots.receive(Slot(3), 40)
    with pytest.raises(AssertionError, match="holds a state already"):
        slots.start(Slot(3))
    assert bool(storage.view(2, "matrix")[3].all())
    assert slots.materialized(Slot(3)).depth == 40
    slots.advance(Slot(3), 41)


def test_a_slot_holds_one_state_at_a_time() -> None:
    _, storage = build(4)
    slots, slot = SlotStates(storage, 5), Slot(1)
    slots.start(slot)
    with pytest.raises(AssertionError, match="holds a state already"):
        slots.receive(slot, 4)
    with pytest.raises(AssertionError, match="holds a state already"):
        slots.copy(slots.materialized(slot), slot)
    slots.release(slot)
    with pytest.raises(AssertionError, match="released unused"):
        slots.release(slot)
    slots.receive(slot, 4)


def test_the_state_of_a_known_request_has_the_size_that_was_seen_in_the_field() -> None:
    """Qwen3.5-35B-A3B on two ranks after 53 tokens: 30 matrices and convolutions, keys and values of 10 layers."""
    of_ranks = [layouts(STATE_SHAPES["large_hybrid"].state(), 1, Shard(rank, 2)) for rank in range(2)]
    for full, slot in of_ranks:
        assert slot.unit_bytes == 30 * (1_048_576 + 4_096 * 3 * 2)
        assert slot.unit_bytes + 53 * full.unit_bytes == 32_737_280
