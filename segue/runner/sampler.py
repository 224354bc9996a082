"""Logits to tokens: applies each request's parameters to its own row; knows nothing of batches, pages or models.

A row's result is a function of its logits and its request alone: rows are worked on one by one, and noise is
counter-based (noise.py), so that it is the same in any batch, process and step. In this order:

1. `logit_bias` is added.
2. `min_tokens`: until so many tokens are out, `stop_token_ids` and (unless `ignore_eos`) eos are impossible.
3. `repetition_penalty` over prompt and output (Keskar et al., 2019): divides a positive logit, multiplies another.
4. `presence_penalty` once, and `frequency_penalty` per occurrence, over output tokens only (OpenAI's formula).
5. `temperature`; 0 takes the best token here, of equal ones the lowest id.
6. `min_p`, then `top_k`, then `top_p` (truncation.py).
7. The token of the greatest score plus Gumbel noise: a draw from the softmax of what is left.

Logprobs are of the raw logits, before step 1, as OpenAI and vLLM report them.
"""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from segue.batch.failure import NO_TOKEN, SamplingFailed
from segue.batch.request import Request
from segue.batch.sampling import SamplingParams
from segue.batch.step import FloatArray, IntArray, StepOutput, TopLogprobs
from segue.errors import CheckpointError
from segue.runner.counts import TokenCounts
from segue.runner.logprobs import best_tokens, log_softmax
from segue.runner.noise import gumbel, row_key
from segue.runner.truncation import kept_tokens


class Sampler:
    """Samples for one model. Keeps token counts for penalties, which die with their request."""

    def __init__(self, eos_token_ids: Sequence[int], vocab_size: int) -> None:
        """Raises CheckpointError when an end-of-sequence token is none of the model's."""
        for token_id in eos_token_ids:
            if not 0 <= token_id < vocab_size:
                raise CheckpointError(f"eos_token_id {token_id} is none of the model's {vocab_size} tokens")
        self._eos_token_ids = tuple(eos_token_ids)
        self._vocab_size = vocab_size
        self._all_ids = np.arange(vocab_size, dtype=np.int64)
        self._counts: WeakKeyDictionary[Request, TokenCounts] = WeakKeyDictionary()

    def sample(self, logits: torch.Tensor, requests: Sequence[Request]) -> StepOutput:
        """One token per row. `logits`: fp32 [S, vocab] of any device, not changed; row i belongs to `requests[i]`.

        Raises SamplingFailed, after all rows were done, when some row has no finite best logit.
        """
        assert logits.shape == (len(requests), self._vocab_size), f"logits {logits.shape} for {len(requests)} requests"
        assert logits.dtype is torch.float32, logits.dtype
        rows: FloatArray = logits.numpy(force=True)
        chosen: IntArray = rows.argmax(axis=1)
        # argmax stops at a NaN, so the best value tells of NaN and of infinity anywhere in its row.
        sound = np.isfinite(rows[np.arange(len(requests)), chosen])
        chosen[~sound] = NO_TOKEN
        for index, request in enumerate(requests):
            if sound[index] and not _plain_greedy(request):
                chosen[index] = self._choose(rows[index], request)
        output = _reported(rows, chosen, requests)
        if NO_TOKEN in chosen:
            failed = [request for request, token in zip(requests, chosen, strict=True) if token == NO_TOKEN]
            raise SamplingFailed(tuple(failed), output)
        return output

    def _choose(self, row: FloatArray, request: Request) -> int:
        sampling = request.sampling
        scores = row.astype(np.float64)
        self._adjust(scores, request)
        best = int(scores.argmax())
        if scores[best] == -np.inf:
            return NO_TOKEN
        if sampling.greedy:
            return best
        scores -= scores[best]
        # A temperature near 0 sends everything but the best to minus infinity, as it should.
        with np.errstate(over="ignore"):
            scores /= sampling.temperature
        key = row_key(sampling.seed, sampling.choice, len(request.output))
        if _uncut(sampling):
            return int((scores + gumbel(key, self._all_ids)).argmax())
        kept = kept_tokens(scores, sampling)
        return int(kept[(scores[kept] + gumbel(key, kept)).argmax()])

    def _adjust(self, scores: npt.NDArray[np.float64], request: Request) -> None:
        """Steps 1 to 4, in place."""
        sampling = request.sampling
        for token_id, bias in sampling.logit_bias:
            scores[token_id] += bias
        if len(request.output) < sampling.min_tokens:
            scores[list(sampling.stop_token_ids)] = -np.inf
            if not sampling.ignore_eos:
                scores[list(self._eos_token_ids)] = -np.inf
        if not _penalised(sampling):
            return
        counts = self._counts.get(request)
        if counts is None:
            counts = self._counts[request] = TokenCounts(request)
        counts.catch_up(request)
        seen, times = counts.token_ids, counts.output_counts
        logits = scores[seen]
        repetition = sampling.repetition_penalty
        logits = np.where(logits > 0.0, logits / repetition, logits * repetition)
        logits -= sampling.presence_penalty * (times > 0)
        logits -= sampling.frequency_penalty * times
        scores[seen] = logits


def _plain_greedy(request: Request) -> bool:
    sampling = request.sampling
    return (
        sampling.temperature == 0.0
        and not sampling.logit_bias
        and len(request.output) >= sampling.min_tokens
        and not _penalised(sampling)
    )


def _penalised(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1.0 or sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0


def _uncut(sampling: SamplingParams) -> bool:
    return sampling.min_p == 0.0 and sampling.top_k == 0 and sampling.top_p == 1.0


def _reported(rows: FloatArray, chosen: IntArray, requests: Sequence[Request]) -> StepOutput:
    """The chosen tokens with the logprobs that were asked for; a row that wants fewer alternatives ends in NO_TOKEN."""
    logprobs = np.zeros(len(requests), dtype=np.float32)
    widths = [request.sampling.logprobs for request in requests if request.sampling.logprobs is not None]
    if not widths:
        return StepOutput(chosen, logprobs, None)
    top_ids = np.full((len(requests), max(widths)), NO_TOKEN, dtype=np.int64)
    top_logprobs = np.full((len(requests), max(widths)), -np.inf, dtype=np.float32)
    for index, request in enumerate(requests):
        wanted = request.sampling.logprobs
        if wanted is None or chosen[index] == NO_TOKEN:
            continue
        row = log_softmax(rows[index])
        logprobs[index] = row[chosen[index]]
        best = best_tokens(row, wanted)
        top_ids[index, : len(best)] = best
        top_logprobs[index, : len(best)] = row[best]
    return StepOutput(chosen, logprobs, TopLogprobs(top_ids, top_logprobs))
