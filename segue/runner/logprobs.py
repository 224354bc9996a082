"""Log-probabilities as reported to clients: of the model itself, before penalties, temperature or cuts."""

import numpy as np
import numpy.typing as npt

from segue.batch.step import FloatArray, IntArray


def log_softmax(logits: FloatArray) -> npt.NDArray[np.float64]:
    """Log-probabilities of one row of finite-topped raw logits [vocab]."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max()
    shifted -= np.log(np.exp(shifted).sum())
    return shifted


def best_tokens(logprobs: npt.NDArray[np.float64], count: int) -> IntArray:
    """Ids of the `count` greatest, best first; of equal ones the lowest id first."""
    count = min(count, len(logprobs))
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    threshold = np.partition(logprobs, len(logprobs) - count)[len(logprobs) - count]
    # More than `count` when several equal the last one; the sort by value, then id, says which of them stay.
    candidates = np.flatnonzero(logprobs >= threshold)
    order = np.lexsort((candidates, -logprobs[candidates]))
    return candidates[order[:count]]
