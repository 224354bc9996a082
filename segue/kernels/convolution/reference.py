"""The causal depthwise convolution of one sequence by its definition; what every other implementation must equal."""

import torch
from torch import Tensor


def convolve(columns: Tensor, taps: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
    """Output at t is the sum over i of taps[i] times the column i - (width - 1) tokens from t.

    columns [tokens, channels], taps [width, channels], oldest first, past [width - 1, channels]: the columns before
    the first. Returns the output like columns, and the past of the token that follows.
    """
    width = taps.shape[0]
    history = torch.cat([past, columns])
    out = torch.zeros_like(columns)
    for token in range(columns.shape[0]):
        for tap in range(width):
            out[token] += taps[tap] * history[token + tap]
    return out, history[-(width - 1) :]
