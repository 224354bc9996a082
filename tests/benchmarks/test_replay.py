"""The benchmark of replayed steps counts bytes and writes as they are, and gives no figure for a wrong read."""

import pytest
import torch
from torch import Tensor

from benchmarks.recurrent_bed import GEOMETRIES, Geometry, check
from benchmarks.refusal import Refused
from benchmarks.replay import beside_floor, step_s
from segue.kernels.recurrence import batched
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentMemory, RecurrentShape
from segue.kernels.recurrence.rule import Rule
from segue.state.spec import DType

CPU = torch.device("cpu")


def small(rule: Rule) -> Geometry:
    return Geometry(layers=1, shape=RecurrentShape(rule=rule, groups=2, heads=2, key_dim=6, value_dim=4))


def forgetful(
    rule: Rule,
    inputs: RecurrentInputs,
    memory: RecurrentMemory,
    slots: Tensor,
    rings: Tensor,
    cursors: Tensor,
    flush: Tensor,
) -> Tensor:
    """A step that reads no records."""
    return batched.decode(rule, inputs, memory, slots, rings, torch.zeros_like(cursors), flush)


@pytest.mark.parametrize("rule", Rule)
def test_a_right_step_passes_and_writes_one_matrix_in_length(rule: Rule) -> None:
    error, written = check(small(rule), 4, DType.FLOAT32, CPU, batched.decode, batched.advance)
    assert error < 1e-5
    assert written == 1 / 4


def test_a_step_that_forgets_its_records_gives_no_figure() -> None:
    with pytest.raises(Refused, match="from the recurrence's"):
        check(small(Rule.GATED_DELTA), 4, DType.FLOAT32, CPU, forgetful, batched.advance)


def test_the_speed_up_that_bytes_allow_is_that_of_matrices_and_records() -> None:
    geometry = GEOMETRIES["qwen3.5-35b-a3b"]
    assert geometry.matrix_bytes == 32 * 128 * 128 * 4
    assert geometry.record_bytes(DType.BFLOAT16) == 32 * 128 * 2 + 16 * 128 * 2 + 32 * 4
    figures = beside_floor(geometry, 128, 16, DType.BFLOAT16, rate=4e12, plain_s=140e-6, replay_s=84e-6)
    assert figures["plain_floor_us"] == pytest.approx(128 * geometry.step_bytes(1, DType.BFLOAT16) / 4e6, abs=1e-3)
    assert figures["speed_up_allowed"] == pytest.approx(1.78, abs=0.01)
    assert figures["share"] == pytest.approx(140 / 84 / 1.781, abs=1e-3)


@pytest.mark.parametrize("length", [1, 3])
def test_a_cycle_is_timed_and_leaves_finite_matrices(length: int) -> None:
    assert step_s(small(Rule.KIMI_DELTA), 3, length, DType.FLOAT32, CPU, batched.decode, rounds=1) > 0
