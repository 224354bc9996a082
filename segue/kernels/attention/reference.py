"""Attention of one sequence by its definition, query by query; slow, and what every other implementation must equal."""

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, *, start: int, scale: float, window: int | None) -> Tensor:
    """Softmax attention of queries at positions start, start + 1, ... over the keys at positions 0, 1, ...

    query [tokens, query heads, dim], key and value [start + tokens, kv heads, dim]; a query sees its own position,
    and of the past the last `window` positions (None: all). Consecutive query heads share one kv head. Returns the
    shape of query.
    """
    sharing = query.shape[1] // key.shape[1]
    out = torch.empty_like(query)
    for index in range(query.shape[0]):
        position = start + index
        oldest = 0 if window is None else max(0, position - window)
        for head in range(query.shape[1]):
            keys = key[oldest : position + 1, head // sharing].float()
            values = value[oldest : position + 1, head // sharing].float()
            weights = torch.softmax(keys @ query[index, head].float() * scale, dim=0)
            out[index, head] = (weights @ values).to(query.dtype)
    return out
