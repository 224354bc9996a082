"""Trains the bundled model within a budget of seconds, in one run or in several.

`python -m segue.zoo.train --out DIR --seconds-total 1100 --seconds-this-run 550 --export DIR2` goes on from the
checkpoint in DIR if there is one, and leaves the averaged weights in DIR2 in the published format.
"""

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path

import torch

from segue.zoo.architecture import Architecture
from segue.zoo.bundle import BUNDLED_MODEL
from segue.zoo.export import write_weights
from segue.zoo.optimizer import OptimizerState, initial_state
from segue.zoo.parameters import initial_flat
from segue.zoo.rows import ROW_LENGTHS, TOKENS_PER_STEP, RowStream
from segue.zoo.score import Score, score
from segue.zoo.train_step import TrainStep
from segue.zoo.training_checkpoint import (
    Progress,
    load_checkpoint,
    read_parts,
    save_checkpoint,
    write_parts,
)

RATE_WARMUP_STEPS = 100
SYNC_STEPS = 10
LOG_STEPS = 200
INITIAL_SEED = 20_261
EVALUATION_SEED = 7
EVALUATION_PROBLEMS = 400


def learning_rate(peak: float, step: int, share: float) -> float:
    """Linear warm-up over the first steps, then a cosine to zero over the share of the budget that is spent."""
    warm = min(1.0, (step + 1) / RATE_WARMUP_STEPS)
    return peak * warm * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    seconds_total: float
    seconds_this_run: float
    peak_rate: float


def train(step_of: TrainStep, stream: RowStream, progress: Progress, budget: Budget) -> tuple[Progress, list[str]]:
    """Steps until this run's or the whole budget is spent; returns where it stopped, and the log."""
    started = time.monotonic()
    log: list[str] = []
    step, seconds = progress.step, progress.seconds
    waited_s = 0.0
    logged_at = started
    while seconds < budget.seconds_total and seconds - progress.seconds < budget.seconds_this_run:
        asked = time.monotonic()
        rows = stream.next()
        waited_s += time.monotonic() - asked
        rate = learning_rate(budget.peak_rate, step, seconds / budget.seconds_total)
        step_of(rows, rate)
        step += 1
        if step % SYNC_STEPS == 0 and torch.cuda.is_available():
            torch.cuda.synchronize()  # else the host runs ahead of the clock that the schedule reads
        seconds = progress.seconds + time.monotonic() - started
        if step % LOG_STEPS == 0:
            loss = step_of.solution_loss_sum.item() / LOG_STEPS
            step_of.solution_loss_sum.zero_()
            now = time.monotonic()
            speed = LOG_STEPS * TOKENS_PER_STEP / (now - logged_at)
            logged_at = now
            log.append(
                f"step {step} seconds {seconds:.0f} rate {rate:.2e} solution loss {loss:.4f} "
                f"tokens/s {speed:,.0f} waited {waited_s:.1f} s"
            )
            print(log[-1], flush=True)
    return Progress(step, seconds), log


def start(arch: Architecture, arguments: argparse.Namespace, device: torch.device) -> tuple[OptimizerState, Progress]:
    found = load_checkpoint(arguments.out, device)
    if found is not None:
        return found
    if arguments.start_from is not None:
        return read_parts(arguments.start_from, device)
    return initial_state(initial_flat(arch, INITIAL_SEED).to(device)), Progress(0, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--export", type=Path, required=True)
    parser.add_argument("--start-from", type=Path)
    parser.add_argument("--seconds-total", type=float, required=True)
    parser.add_argument("--seconds-this-run", type=float, required=True)
    parser.add_argument("--peak-rate", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=13)
    arguments = parser.parse_args()
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    arch = Architecture()
    state, progress = start(arch, arguments, device)
    stream = RowStream(BUNDLED_MODEL, progress.step, arguments.workers)
    step_of = TrainStep(arch, state, TOKENS_PER_STEP)
    for length in ROW_LENGTHS:
        step_of.prepare(length)
        print(f"row length {length} ready after {time.monotonic() - began:.1f} s", flush=True)
    budget = Budget(
        seconds_total=arguments.seconds_total,
        seconds_this_run=arguments.seconds_this_run,
        peak_rate=arguments.peak_rate,
    )
    progress, log = train(step_of, stream, progress, budget)
    stream.close()
    save_checkpoint(arguments.out, state, progress)
    write_weights(arch, state.average, arguments.export)
    write_parts(arguments.export, state, progress)
    scores = report_scores(arch, state)
    summary = {
        "progress": dataclasses.asdict(progress),
        "tokens": progress.step * TOKENS_PER_STEP,
        "scores": [dataclasses.asdict(s) for s in scores],
        "log": log,
    }
    (arguments.export / "training.json").write_text(json.dumps(summary, indent=2) + "\n")
    print(f"done after {time.monotonic() - began:.1f} s: {progress}", flush=True)


def report_scores(arch: Architecture, state: OptimizerState) -> list[Score]:
    scores = []
    for examples in (0, 8):
        scores.append(score(arch, state.average, BUNDLED_MODEL, EVALUATION_SEED, EVALUATION_PROBLEMS, examples))
        print(scores[-1], flush=True)
    return scores


if __name__ == "__main__":
    main()
