"""Logits to scores of prompt tokens: of the model itself, computed row by row as those of output tokens are."""

from collections.abc import Sequence

import numpy as np
import torch

from segue.batch.request import Request
from segue.batch.scores import Scores, Top
from segue.batch.step import FloatArray, StepRow
from segue.runner.logprobs import best_tokens, log_softmax


def score(logits: torch.Tensor, rows: Sequence[StepRow]) -> tuple[tuple[Scores, ...], list[Request]]:
    """One entry per row, and the requests whose logits are none (NaN, or infinity), whose entries are empty.

    `logits`: fp32 [N, vocab] of any device, not changed: those of the rows' scored positions, one row after another.
    """
    counts = [len(row.scored) for row in rows]
    assert logits.shape[0] == sum(counts), f"logits {logits.shape} for {counts} positions"
    assert logits.dtype is torch.float32, logits.dtype
    values: FloatArray = logits.numpy(force=True)
    # The best value tells of NaN and of infinity anywhere in its position.
    sound = np.isfinite(values.max(axis=1))
    found: list[Scores] = []
    failed: list[Request] = []
    for row, place in zip(rows, np.cumsum(counts) - counts, strict=True):
        there = slice(place, place + len(row.scored))
        if sound[there].all():
            found.append(_score_row(values[there], row))
        else:
            found.append(Scores(row.scored.start + 1, (), ()))
            failed.append(row.request)
    return tuple(found), failed


def _score_row(values: FloatArray, row: StepRow) -> Scores:
    scored, wanted = row.scored, row.request.sampling.logprobs
    assert wanted is not None, "a scored prompt has logprobs"
    targets = row.request.prompt[scored.start + 1 : scored.stop + 1]
    width = min(wanted, values.shape[1])
    best = np.empty((len(scored), width), dtype=np.int64)
    best_values = np.empty((len(scored), width), dtype=np.float32)
    chosen = np.empty(len(scored), dtype=np.float32)
    for index, target in enumerate(targets):
        distribution = log_softmax(values[index])
        chosen[index] = distribution[target]
        best[index] = best_tokens(distribution, wanted)
        best_values[index] = distribution[best[index]]
    pairs = zip(best.tolist(), best_values.tolist(), strict=True)
    tops: list[Top] = [tuple(zip(ids, logprobs, strict=True)) for ids, logprobs in pairs]
    return Scores(scored.start + 1, chosen.tolist(), tops)
