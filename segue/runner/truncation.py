"""Which tokens may still be sampled after min_p, top_k and top_p; ties are settled by token id, so the answer is exact.

Scores are logits over temperature with the best at 0, float64 [vocab]. Each cut works on what the one before it left.
"""

import math

import numpy as np
import numpy.typing as npt

from segue.batch.sampling import SamplingParams
from segue.batch.step import IntArray

Scores = npt.NDArray[np.float64]


def kept_tokens(scores: Scores, sampling: SamplingParams) -> IntArray:
    """The ascending ids of the tokens that remain; at least one."""
    # A token's probability over the best one's is exp(score), whatever the softmax normaliser is.
    kept = np.flatnonzero(scores >= math.log(sampling.min_p)) if sampling.min_p > 0.0 else None
    if 0 < sampling.top_k < (len(scores) if kept is None else len(kept)):
        left = scores if kept is None else scores[kept]
        threshold = np.partition(left, len(left) - sampling.top_k)[len(left) - sampling.top_k]
        best = _greatest(left, sampling.top_k, threshold)
        kept = best if kept is None else kept[best]
    if sampling.top_p < 1.0:
        best = _nucleus(scores if kept is None else scores[kept], sampling.top_p)
        kept = best if kept is None else kept[best]
    return np.arange(len(scores)) if kept is None else kept


def _nucleus(scores: Scores, top_p: float) -> IntArray:
    """Indices of the smallest set of best tokens that reaches top_p: the token that crosses the bound is still in."""
    weights = np.exp(scores)
    total = float(weights.sum())
    # Tokens this light cannot add up to 1 - top_p, so none of them is in the set; what is left is quick to sort.
    candidates = np.flatnonzero(weights >= (1.0 - top_p) * total / len(weights))
    weights = weights[candidates]
    falling = np.sort(weights)[::-1]
    count = min(int(falling.cumsum().searchsorted(top_p * total)) + 1, len(falling))
    return candidates[_greatest(weights, count, falling[count - 1])]


def _greatest(values: Scores, count: int, threshold: float) -> IntArray:
    """Ascending indices of the `count` greatest, the last being `threshold`; of equal values the lowest indices."""
    found = np.flatnonzero(values >= threshold)
    if len(found) > count:
        above = values > threshold
        ties = np.flatnonzero(values == threshold)
        above[ties[: count - int(np.count_nonzero(above))]] = True
        found = np.flatnonzero(above)
    return found
