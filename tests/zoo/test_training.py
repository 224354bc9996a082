"""Training lowers the loss, goes on from a checkpoint as if never stopped, and its decoder agrees with its forward."""

from pathlib import Path

import pytest
import torch

from segue.zoo.architecture import Architecture, Mixer
from segue.zoo.bundle import BUNDLED_MODEL
from segue.zoo.optimizer import OptimizerState, adamw_step, initial_state
from segue.zoo.parameters import initial_flat, named_views
from segue.zoo.rows import ROW_LENGTHS, Encoder, make_step_rows
from segue.zoo.step_decode import StepDecoder, generate_greedy
from segue.zoo.train import learning_rate
from segue.zoo.train_step import TrainStep
from segue.zoo.training_checkpoint import Progress, load_checkpoint, read_parts, save_checkpoint, write_parts
from segue.zoo.training_model import PLAIN, TrainingModel, make_rows

CPU = torch.device("cpu")
TOKEN_COUNT = 4_096
SMALL = Architecture(
    hidden=32,
    mixers=(Mixer.LINEAR, Mixer.SLIDING, Mixer.FULL),
    query_heads=2,
    kv_heads=1,
    head_dim=16,
    key_heads=1,
    value_heads=2,
    key_dim=16,
    value_dim=16,
    expert_width=32,
    shared_width=32,
)


def run_steps(state: OptimizerState, first: int, last: int) -> list[float]:
    """Solution losses of the steps `first` to `last - 1`."""
    step_of = TrainStep(SMALL, state, TOKEN_COUNT)
    for length in ROW_LENGTHS:
        step_of.prepare(length)
    encoder = Encoder(BUNDLED_MODEL)
    losses = []
    for step in range(first, last):
        step_of.solution_loss_sum.zero_()
        step_of(make_step_rows(encoder, step, TOKEN_COUNT), 5e-3)
        losses.append(step_of.solution_loss_sum.item())
    return losses


@pytest.mark.slow
def test_a_few_steps_lower_the_loss() -> None:
    losses = run_steps(initial_state(initial_flat(SMALL, seed=0)), 0, 20)
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.long
def test_a_run_from_a_checkpoint_is_the_run_that_never_stopped(tmp_path: Path) -> None:
    whole = initial_state(initial_flat(SMALL, seed=0))
    run_steps(whole, 0, 4)
    stopped = initial_state(initial_flat(SMALL, seed=0))
    run_steps(stopped, 0, 2)
    save_checkpoint(tmp_path, stopped, Progress(2, 1.5))
    found = load_checkpoint(tmp_path, CPU)
    assert found is not None
    state, progress = found
    assert progress == Progress(2, 1.5)
    run_steps(state, progress.step, 4)
    assert torch.equal(state.flat, whole.flat)
    assert torch.equal(state.average, whole.average)


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path, CPU) is None


def test_the_parts_carry_the_parameters_exactly(tmp_path: Path) -> None:
    state = initial_state(initial_flat(SMALL, seed=3))
    write_parts(tmp_path, state, Progress(9, 4.0))
    again, progress = read_parts(tmp_path, CPU)
    assert progress == Progress(9, 4.0)
    assert torch.equal(again.flat, state.flat)


def test_a_gradient_that_is_not_finite_moves_nothing_but_the_count() -> None:
    state = initial_state(torch.ones(4))
    adamw_step(state, torch.tensor([1.0, float("nan"), 0.0, 1.0]), torch.zeros(4), torch.tensor(0.1))
    assert torch.equal(state.flat, torch.ones(4))
    assert state.step.item() == 1


def test_the_optimizer_is_torchs_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(50, generator=generator))
    state = initial_state(parameter.detach().clone())
    oracle = torch.optim.AdamW([parameter], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
    for _ in range(5):
        gradient = 0.05 * torch.randn(50, generator=generator)  # below the norm at which it would be clipped
        parameter.grad = gradient.clone()
        oracle.step()
        adamw_step(state, gradient, torch.ones(50), torch.tensor(1e-2))
    torch.testing.assert_close(state.flat, parameter.detach(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(("share", "rate"), [(0.0, 2e-3), (0.5, 1e-3), (1.0, 0.0), (1.2, 0.0)])
def test_the_rate_falls_to_zero_over_the_budget(share: float, rate: float) -> None:
    assert learning_rate(2e-3, 1_000, share) == pytest.approx(rate)


def test_the_step_decoder_gives_the_forwards_logits() -> None:
    weights = named_views(SMALL, initial_flat(SMALL, seed=1))
    tokens = torch.randint(SMALL.vocab, (2, 256), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        rows = make_rows(SMALL, 2, 256, CPU, torch.float32)
        expected = TrainingModel(SMALL, PLAIN, torch.float32).logits(weights, tokens.flatten(), rows)
        decoder = StepDecoder(SMALL, weights, 2, 256)
        logits = torch.stack([decoder.step(column) for column in tokens.unbind(1)], dim=1)
    torch.testing.assert_close(logits, expected.view_as(logits), atol=1e-4, rtol=0)


def test_prompts_of_unequal_length_are_continued_as_if_alone() -> None:
    weights = named_views(SMALL, initial_flat(SMALL, seed=1))
    prompts = [[0, 1, 70, 71, 72], [0, 1, 80], [0, 1, 90, 91, 92, 93, 94, 95]]
    together = generate_greedy(SMALL, weights, prompts, 12, end_id=4)
    alone = [generate_greedy(SMALL, weights, [prompt], 12, end_id=4)[0] for prompt in prompts]
    assert together == alone
