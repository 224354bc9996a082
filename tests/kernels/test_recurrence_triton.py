"""The Triton kernels, interpreted where there is no device, keep to the recurrence and to torch's records."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from segue.kernels.recurrence import batched, launch
from segue.kernels.recurrence.launch import Tiling
from segue.kernels.recurrence.memory import RecurrentShape
from segue.kernels.recurrence.rule import Rule
from segue.state.spec import DType
from tests.kernels.replayed import Trial

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ERROR_MAX = 2e-6
ROOT = Path(__file__).parent.parent.parent


# Value heads and value dim: of 40 columns the second block of 32 has 8.
SHAPES = ((1, 40), (2, 7), (4, 3))


@pytest.mark.parametrize(
    ("rule", "heads", "value_dim"),
    [
        # Each rule with one shape, and each shape with one rule; the interpreter takes long for the others.
        pytest.param(rule, *shape, marks=() if of_rule == of_shape else pytest.mark.long)
        for of_rule, rule in enumerate(Rule)
        for of_shape, shape in enumerate(SHAPES)
    ],
)
def test_a_step_and_a_fold_at_every_cursor_read_what_torch_recorded(rule: Rule, heads: int, value_dim: int) -> None:
    length = 4
    shape = RecurrentShape(rule=rule, groups=3 - heads // 2, heads=heads, key_dim=5, value_dim=value_dim)
    trial = Trial(batched, shape, length, layers=1, device=DEVICE)
    slots = [7, 0, 3, 9, -1, 5]
    for slot in (7, 3, 9, 5):
        trial.alloc(slot)
    # Leaves cursors 3, 0, 2 and 1, and stale records behind them.
    errors = [trial.decode(slots, flush=flush) for flush in ([5], [3], [0], [2], [5], [3], [])]
    spread = trial.cursors[[7, 3, 9, 5]].tolist()
    assert sorted(spread) == [0, 1, 2, 3]
    trial.using = launch
    errors.append(trial.decode(slots, flush=[5]))
    trial.using = batched
    errors.append(trial.decode(slots))
    trial.using = launch
    errors.append(trial.materialize(slots))
    assert max(errors) < ERROR_MAX


@pytest.mark.parametrize("rule", Rule)
def test_the_plain_step_is_the_step_of_length_one(rule: Rule) -> None:
    trial = Trial(
        launch, RecurrentShape(rule=rule, groups=2, heads=2, key_dim=6, value_dim=9), 1, layers=1, device=DEVICE
    )
    for slot in (2, 4):
        trial.alloc(slot)
    errors = [trial.decode([4, 0, 2]) for _ in range(2)]
    assert max(*errors, trial.materialize([2, 4])) < ERROR_MAX
    assert not trial.cursors.any()


@pytest.mark.parametrize("rule", Rule)
def test_what_a_step_writes_is_what_torch_writes(rule: Rule) -> None:
    shape = RecurrentShape(rule=rule, groups=2, heads=2, key_dim=5, value_dim=7)
    ours, other = (
        Trial(using, shape, 3, layers=1, device=DEVICE, record_dtype=DType.BFLOAT16) for using in (launch, batched)
    )
    for trial in (ours, other):
        trial.alloc(6)
        trial.alloc(1)
        trial.decode([6, 0, 1])
        trial.decode([1], flush=[0])
    (mine,), (theirs,) = ours.layers, other.layers
    assert mine.ring is not None
    assert theirs.ring is not None
    for name in ("corrections", "keys", "log_decays"):
        found, wanted = getattr(mine.ring, name).float(), getattr(theirs.ring, name).float()
        torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2, equal_nan=True)
    torch.testing.assert_close(mine.matrix.whole, theirs.matrix.whole, rtol=0, atol=1e-2, equal_nan=True)
    assert ours.cursors.tolist() == other.cursors.tolist()


def test_how_a_step_is_cut_changes_nothing_but_the_order_of_sums() -> None:
    shape = RecurrentShape(rule=Rule.GATED_DELTA, groups=1, heads=2, key_dim=5, value_dim=40)
    trials = [Trial(launch, shape, 3, layers=1, device=DEVICE) for _ in range(2)]
    slots, flush = torch.tensor([6], device=DEVICE), torch.zeros(1, dtype=torch.bool, device=DEVICE)
    for trial in trials:
        trial.alloc(6)
    inputs = trials[0].inputs(1)
    cuts = (Tiling(16, 1), None)
    outs = [
        launch.decode(shape.rule, inputs, trial.layers[0], slots, slots, trial.cursors, flush, cut)
        for trial, cut in zip(trials, cuts, strict=True)
    ]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-6)


def test_a_cursor_moves_once_a_step_however_often_its_slot_is_named() -> None:
    cursors = torch.tensor([0, 2, 3, 0, 1], dtype=torch.int32, device=DEVICE)
    slots = torch.tensor([1, 4, 1, 0, -1, 2], device=DEVICE)
    flush = torch.tensor([False, False, False, True, False, False], device=DEVICE)
    launch.advance(cursors, slots, flush, 4)
    assert cursors.tolist() == [0, 3, 0, 0, 2]


@pytest.mark.long
def test_the_kernels_compile_for_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-m", "tests.kernels.compiled"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=200)
