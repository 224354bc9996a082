"""Chunked and single-step gated delta rule equal the recurrence, at any depth and length, on poisoned slots."""

import pytest
import torch
from torch import Tensor

from segue.kernels.gated_delta import chunk, step
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.gated_delta.reference import scan
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.scratch import Scratch
from tests.kernels.poisoned import noise, slot_memory

GROUPS, HEADS, KEY_DIM, VALUE_DIM = 2, 3, 16, 8


def some_inputs(tokens: int) -> DeltaInputs:
    query_key = torch.nn.functional.normalize(noise(tokens, GROUPS, 2, KEY_DIM), dim=-1)
    value = noise(tokens, GROUPS, HEADS, VALUE_DIM, seed=1)
    log_decay = -noise(tokens, GROUPS, HEADS, seed=2).abs() * 0.3
    return DeltaInputs(query_key, value, log_decay, noise(tokens, GROUPS, HEADS, seed=3).sigmoid())


def wanted(inputs: DeltaInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence, head by head; state [groups, heads, key dim, value dim]."""
    out, last = torch.empty_like(inputs.value), torch.empty_like(state)
    for group in range(GROUPS):
        query, key = inputs.query_key[:, group].unbind(1)
        for head in range(HEADS):
            place = (slice(None), group, head)
            out[place], last[group, head] = scan(
                query, key, inputs.value[place], inputs.log_decay[place], inputs.beta[place], state[group, head]
            )
    return out, last


@pytest.mark.parametrize("depth", [0, 1, 63, 64, 100])
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 150])
def test_chunks_equal_the_recurrence_at_any_depth(depth: int, count: int) -> None:
    inputs, state = some_inputs(count), noise(GROUPS, HEADS, KEY_DIM, VALUE_DIM, seed=9)
    out, last = wanted(inputs, state)
    torch.testing.assert_close(chunk.extend(inputs, state, depth), out, rtol=0, atol=2e-5)
    torch.testing.assert_close(state, last, rtol=0, atol=2e-5)


def test_chunks_survive_a_decay_to_nothing() -> None:
    inputs = some_inputs(130)
    steep = DeltaInputs(inputs.query_key, inputs.value, inputs.log_decay * 300, inputs.beta)
    state = noise(GROUPS, HEADS, KEY_DIM, VALUE_DIM, seed=9)
    out, last = wanted(steep, state)
    torch.testing.assert_close(chunk.extend(steep, state, 0), out, rtol=0, atol=2e-5)
    torch.testing.assert_close(state, last, rtol=0, atol=2e-5)


@pytest.mark.parametrize("beside", [VALUE_DIM * 6, VALUE_DIM * 6 + 16, 100], ids=["rows", "rows too", "no rows"])
@pytest.mark.parametrize("slots", [[7], [3, 4, 5], [9, 2, 3, 30, 1]])
def test_decode_rows_move_their_slots_on_and_no_others(slots: list[int], beside: int) -> None:
    memory = slot_memory(GROUPS, (HEADS, KEY_DIM, VALUE_DIM), beside)
    before = {slot: noise(GROUPS, HEADS, KEY_DIM, VALUE_DIM, seed=slot) for slot in slots}
    for slot, state in before.items():
        memory.whole[slot] = state
    inputs = some_inputs(len(slots))
    out = step.decode(inputs, memory, SlotRows.of(torch.tensor(slots), memory), Scratch())
    for row, slot in enumerate(slots):
        row_out, last = wanted(inputs.at(slice(row, row + 1)), before[slot])
        torch.testing.assert_close(out[row : row + 1], row_out, rtol=0, atol=1e-5)
        torch.testing.assert_close(memory.whole[slot], last, rtol=0, atol=1e-5)
    others = [slot for slot in range(len(memory.whole)) if slot not in slots]
    assert memory.whole[others].isnan().all()


def test_each_head_group_has_its_own_state_however_the_batch_is_cut_into_runs() -> None:
    slots = torch.tensor([4, 5, 6, 2, 8, 9, 1])
    runs = SlotRows.of(slots, slot_memory(GROUPS, (HEADS, KEY_DIM, VALUE_DIM), 8)).runs
    assert [(run.rows, run.slots) for run in runs] == [
        (slice(0, 3), slice(4, 7)),
        (slice(3, 4), slice(2, 3)),
        (slice(4, 6), slice(8, 10)),
        (slice(6, 7), slice(1, 2)),
    ]
