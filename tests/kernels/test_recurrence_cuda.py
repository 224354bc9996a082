"""On a CUDA device the Triton kernels keep to the recurrence, and a captured step moves cursors once per replay."""

import pytest
import torch

from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentShape
from segue.kernels.recurrence.rule import Rule
from segue.state.spec import DType
from tests.kernels.replayed import Implementation, Trial

pytestmark = pytest.mark.gpu

SLOTS = [7, 0, 3, 9, -1, 5]
LIVE = [7, 3, 9, 5]
# Sums in fp32; records in bf16 keep 8 bits of what they hold.
ERROR_MAX = {DType.FLOAT32: 1e-5, DType.BFLOAT16: 1e-2}


def launching() -> Implementation:
    # Here, because it needs Triton.
    from segue.kernels.recurrence import launch

    return launch


# Value heads of a group, dims of key and value, length, dtype of records.
CASES = [
    (2, 128, 128, 1, DType.FLOAT32),
    (3, 128, 64, 16, DType.FLOAT32),
    (2, 128, 128, 16, DType.BFLOAT16),
    (1, 20, 40, 8, DType.FLOAT32),
    (4, 16, 16, 2, DType.BFLOAT16),
    (2, 128, 128, 32, DType.FLOAT32),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rule", Rule)
def test_steps_keep_to_the_recurrence(rule: Rule, case: tuple[int, int, int, int, DType]) -> None:
    heads, key_dim, value_dim, length, record_dtype = case
    shape = RecurrentShape(rule=rule, groups=2, heads=heads, key_dim=key_dim, value_dim=value_dim)
    trial = Trial(launching(), shape, length, record_dtype=record_dtype, device="cuda")
    for slot in LIVE:
        trial.alloc(slot)
    errors = [trial.decode(SLOTS, flush=[step % 4]) for step in range(3)]
    errors += [trial.decode(SLOTS) for _ in range(length + 1)]
    errors += [trial.materialize(SLOTS[:3]), trial.decode(SLOTS), trial.materialize(SLOTS[:3] + SLOTS[5:])]
    assert max(errors) < ERROR_MAX[record_dtype]


@pytest.mark.parametrize("rule", Rule)
def test_a_captured_step_moves_cursors_once_for_each_replay_and_never_for_padding(rule: Rule) -> None:
    length = 5
    shape = RecurrentShape(rule=rule, groups=2, heads=2, key_dim=128, value_dim=64)
    trial = Trial(launching(), shape, length, device="cuda")
    places = torch.zeros(6, dtype=torch.int64, device="cuda")
    forced = torch.zeros(6, dtype=torch.bool, device="cuda")
    rings = torch.zeros(6, dtype=torch.int64, device="cuda")
    inputs = trial.inputs(6)

    def step() -> list[torch.Tensor]:
        outs = [
            trial.using.decode(rule, inputs, memory, places, rings, trial.cursors, forced) for memory in trial.layers
        ]
        trial.using.advance(trial.cursors, places, forced, length)
        return outs

    # A step of nothing but padding compiles the kernels; then the capture runs none of them.
    step()
    graph = torch.cuda.CUDAGraph()
    places.copy_(torch.tensor(SLOTS))
    with torch.cuda.graph(graph):
        outs = step()
    torch.cuda.synchronize()
    assert not trial.cursors.any()
    for slot in LIVE:
        trial.alloc(slot)
    # Rows of the graph keep their ring rows; whoever has no records needs none, but may have one.
    rings.copy_(trial.ring_rows(SLOTS))
    expected = dict.fromkeys(LIVE, 0)
    for number in range(2 * length + 3):
        _refill(inputs, trial.inputs(6))
        row = number % 4
        forced.copy_(torch.tensor([one == row and number > length for one in range(6)]))
        graph.replay()
        assert trial.worst_error(SLOTS, inputs, outs) < 1e-5
        for place, slot in enumerate(SLOTS):
            if slot in expected:
                flushed = bool(forced[place]) or expected[slot] == length - 1
                expected[slot] = 0 if flushed else expected[slot] + 1
        assert {slot: int(trial.cursors[slot]) for slot in LIVE} == expected
        assert int(trial.cursors.count_nonzero()) == sum(cursor > 0 for cursor in expected.values())
    assert trial.materialize(LIVE) < 1e-5


def _refill(inputs: RecurrentInputs, other: RecurrentInputs) -> None:
    """The other's numbers, in the memory that the graph reads."""
    for name in ("query", "key", "value", "log_decay", "beta"):
        getattr(inputs, name).copy_(getattr(other, name))
