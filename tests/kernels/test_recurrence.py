"""Plain and replayed steps, folding and chunks of all three recurrences equal the recurrence in float64, everywhere."""

import pytest
import torch
from torch import Tensor

from segue.kernels.gated_delta import step as single_step
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.recurrence import batched, chunk, reference
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentMemory, RecurrentShape, Ring
from segue.kernels.recurrence.reference import Record, Token
from segue.kernels.recurrence.rule import Rule
from segue.kernels.scratch import Scratch
from segue.state.spec import DType
from tests.kernels.replayed import Trial, in_double, relative_error

# fp32 sums of a few dozen terms.
ERROR_MAX = 2e-6
# Records in bfloat16 keep 8 bits of corrections and keys.
ROUNDED_ERROR_MAX = 1e-2


def small_shape(rule: Rule, heads: int) -> RecurrentShape:
    return RecurrentShape(rule=rule, groups=2, heads=heads, key_dim=5, value_dim=7)


@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("rule", Rule)
def test_the_replayed_reference_is_the_recurrence(rule: Rule, length: int) -> None:
    trial = Trial(batched, small_shape(rule, 2), length)
    inputs = in_double(trial.inputs(3 * length))
    state = torch.randn(2, 2, 5, 7, generator=torch.Generator().manual_seed(1)).double()
    wanted, last = reference.scan(rule, inputs, state)
    for group in range(2):
        for head in range(2):
            ours, records = state[group, head], list[Record]()
            for step in range(3 * length):
                token = Token.of(inputs, step, group, head)
                out, ours, records = reference.replay_step(rule, token, ours, records, len(records) == length - 1)
                torch.testing.assert_close(out, wanted[step, group, head], rtol=0, atol=1e-12)
            assert not records
            torch.testing.assert_close(ours, last[group, head], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("heads", "length"), [(1, 1), (4, 1), (2, 2), (1, 4), (2, 4), (4, 4), (2, 9)])
@pytest.mark.parametrize("rule", Rule)
def test_steps_equal_the_recurrence_at_every_cursor_with_padding_and_forced_flushes(
    rule: Rule, heads: int, length: int
) -> None:
    trial = Trial(batched, small_shape(rule, heads), length)
    slots = [7, 0, 3, 9, -1, 5]
    for slot in (7, 3, 9, 5):
        trial.alloc(slot)
    # Rows flush in different steps, so that their cursors differ from then on.
    errors = [trial.decode(slots, flush=[row]) for row in (0, 2, 1, 3, 5)]
    errors += [trial.decode(slots) for _ in range(length + 1)]
    errors += [trial.materialize([7, 0, 3]), trial.decode(slots), trial.materialize([7, 3, 9, 5])]
    assert max(errors) < ERROR_MAX


@pytest.mark.parametrize("rule", Rule)
def test_a_step_writes_to_its_own_rows_only_and_to_no_matrix_but_those_that_flush(rule: Rule) -> None:
    trial = Trial(batched, small_shape(rule, 2), 4)
    for slot in (2, 6, 4):
        trial.alloc(slot)
    trial.decode([2, 6, 4])
    matrices = [memory.matrix.whole.clone() for memory in trial.layers]
    rings = [ring_of(memory).keys.clone() for memory in trial.layers]
    row = trial.rings[6]
    trial.decode([6, 0, 2], flush=[2])
    for memory, matrix, keys in zip(trial.layers, matrices, rings, strict=True):
        assert [slot for slot in range(12) if not same_bits(memory.matrix.whole[slot], matrix[slot])] == [2]
        now = ring_of(memory).keys
        assert [place for place in range(12) if not same_bits(now[place], keys[place])] == [row]
        assert same_bits(now[row, :, 0], keys[row, :, 0])
    assert trial.cursors.tolist() == [0, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("rule", Rule)
def test_records_in_bfloat16_cost_no_more_than_their_rounding(rule: Rule) -> None:
    shape = RecurrentShape(rule=rule, groups=2, heads=2, key_dim=32, value_dim=32)
    trial = Trial(batched, shape, 16, record_dtype=DType.BFLOAT16)
    trial.alloc(3)
    errors = [trial.decode([3]) for _ in range(50)] + [trial.materialize([3])]
    assert ERROR_MAX < max(errors) < ROUNDED_ERROR_MAX


def test_length_one_is_the_plain_step_to_the_bit() -> None:
    shape = small_shape(Rule.GATED_DELTA, 3)
    ours, plain = Trial(batched, shape, 1), Trial(batched, shape, 1)
    slots = torch.tensor([3, 4, 9, 1])
    for slot in slots.tolist():
        ours.alloc(slot)
        plain.alloc(slot)
    for _ in range(3):
        inputs = ours.inputs(4)
        flush = torch.zeros(4, dtype=torch.bool)
        out = batched.decode(shape.rule, inputs, ours.layers[1], slots, slots, ours.cursors, flush)
        matrix = plain.layers[1].matrix
        delta = DeltaInputs(torch.stack([inputs.query, inputs.key], 2), inputs.value, inputs.log_decay, inputs.beta)
        assert torch.equal(out, single_step.decode(delta, matrix, SlotRows.of(slots, matrix), Scratch()))
        assert torch.equal(ours.layers[1].matrix.whole[slots], matrix.whole[slots])


@pytest.mark.parametrize("rule", Rule)
def test_a_steep_decay_forgets_the_past_and_nothing_else(rule: Rule) -> None:
    trial = Trial(batched, small_shape(rule, 2), 8)
    trial.alloc(4)
    errors = []
    for step in range(20):
        trial.steepness = 200.0 if step % 3 == 0 else 1.0
        errors.append(trial.decode([4]))
    # Sums of log decays reach thousands: their differences keep what is left of fp32's 24 bits.
    assert max(errors) < 1e-3


@pytest.mark.parametrize(
    ("count", "depth"), [(1, 0), (1, 15), (16, 0), (2, 63), (64, 0), (63, 1), (65, 64), (40, 100), (150, 10)]
)
@pytest.mark.parametrize("rule", Rule)
def test_chunks_equal_the_recurrence_at_any_depth(rule: Rule, count: int, depth: int) -> None:
    inputs, state = Trial(batched, small_shape(rule, 2), 1).inputs(count), some_state()
    wanted, last = reference.scan(rule, in_double(inputs), state.double())
    assert relative_error(chunk.extend(rule, inputs, state, depth), wanted) < ERROR_MAX
    assert relative_error(state, last) < ERROR_MAX


@pytest.mark.parametrize("rule", Rule)
def test_chunks_survive_a_decay_to_nothing(rule: Rule) -> None:
    trial = Trial(batched, small_shape(rule, 2), 1)
    trial.steepness = 300.0
    inputs, state = trial.inputs(70), some_state()
    wanted, last = reference.scan(rule, in_double(inputs), state.double())
    assert relative_error(chunk.extend(rule, inputs, state, 3), wanted) < ERROR_MAX
    assert relative_error(state, last) < ERROR_MAX


@pytest.mark.parametrize("rule", Rule)
def test_a_prompt_cut_anywhere_and_then_decoded_is_one_sequence(rule: Rule) -> None:
    trial = Trial(batched, small_shape(rule, 2), 4)
    inputs = trial.inputs(60)
    trial.alloc(5)
    memory = trial.layers[0]
    wanted, _ = reference.scan(rule, in_double(inputs), trial.exact[5][0])
    matrix = memory.matrix.whole[5]
    parts = [chunk.extend(rule, inputs.at(slice(0, 20)), matrix, 0)]
    parts += [chunk.extend(rule, inputs.at(slice(20, 50)), matrix, 20)]
    slots, rings, flush = torch.tensor([5]), torch.tensor([2]), torch.zeros(1, dtype=torch.bool)
    for token in range(50, 60):
        one = inputs.at(slice(token, token + 1))
        parts.append(batched.decode(rule, one, memory, slots, rings, trial.cursors, flush))
        batched.advance(trial.cursors, slots, flush, trial.length)
    assert relative_error(torch.cat(parts), wanted) < ERROR_MAX


def test_a_cursor_moves_once_a_step_however_often_its_slot_is_named() -> None:
    cursors = torch.tensor([0, 2, 3, 0, 1], dtype=torch.int32)
    slots, flush = torch.tensor([1, 4, 1, 0, -1, 2]), torch.tensor([False, False, False, True, False, False])
    batched.advance(cursors, slots, flush, 4)
    assert cursors.tolist() == [0, 3, 0, 0, 2]


def some_state() -> Tensor:
    return torch.randn(2, 2, 5, 7, generator=torch.Generator().manual_seed(9))


def ring_of(memory: RecurrentMemory) -> Ring:
    assert memory.ring is not None
    return memory.ring


def same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.int32), other.contiguous().view(torch.int32))


def test_inputs_of_some_tokens_are_theirs() -> None:
    inputs = Trial(batched, small_shape(Rule.MAMBA2, 2), 1).inputs(5)
    some: RecurrentInputs = inputs.at(torch.tensor([4, 1]))
    assert torch.equal(some.value, inputs.value[[4, 1]])
    assert some.skip is inputs.skip
