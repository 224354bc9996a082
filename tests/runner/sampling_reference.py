"""Sampling as its definition reads, in plain Python over lists; slow, and the judge of the real sampler."""

import math
from collections import Counter
from collections.abc import Sequence

from segue.batch.request import Request
from segue.batch.sampling import SamplingParams


def processed_logits(logits: Sequence[float], request: Request, eos_token_ids: Sequence[int]) -> list[float]:
    """Logits after bias, min_tokens and penalties, before temperature."""
    sampling = request.sampling
    scores = list(logits)
    for token, bias in sampling.logit_bias:
        scores[token] += bias
    if len(request.output) < sampling.min_tokens:
        for token in (*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)):
            scores[token] = -math.inf
    counts = Counter(token.token_id for token in request.output)
    for token in range(len(scores)):
        if token in counts or token in request.prompt:
            factor = sampling.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        if counts[token] > 0:
            scores[token] -= sampling.presence_penalty
        scores[token] -= sampling.frequency_penalty * counts[token]
    return scores


def allowed_tokens(scores: Sequence[float], sampling: SamplingParams) -> list[int]:
    """Ids that survive min_p, top_k and top_p, ascending; `scores` are logits over temperature."""
    best = max(scores)
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = [token for token in order if scores[token] > -math.inf]
    weight = {token: math.exp(scores[token] - best) for token in order}
    if sampling.min_p > 0:
        order = [token for token in order if weight[token] >= sampling.min_p]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        total = math.fsum(weight[token] for token in order)
        kept, reached = [], 0.0
        for token in order:
            kept.append(token)
            reached += weight[token]
            if reached >= sampling.top_p * total:
                break
        order = kept
    return sorted(order)


def probabilities(logits: Sequence[float], request: Request, eos_token_ids: Sequence[int]) -> list[float]:
    """The distribution that the sampler must draw from."""
    scores = [score / request.sampling.temperature for score in processed_logits(logits, request, eos_token_ids)]
    allowed = allowed_tokens(scores, request.sampling)
    best = max(scores)
    weights = [math.exp(score - best) if token in allowed else 0.0 for token, score in enumerate(scores)]
    return [weight / math.fsum(weights) for weight in weights]
