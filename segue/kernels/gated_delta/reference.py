"""The gated delta rule of one head by its recurrence (Yang et al., Gated Delta Networks, 2024); defines the result.

d_t = beta_t (v_t - a_t S_{t-1}^T k_t),  S_t = a_t S_{t-1} + k_t d_t^T,  o_t = S_t^T q_t,  with a_t = exp(log_decay_t)
"""

import torch
from torch import Tensor


def scan(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Token after token: query and key [tokens, key dim], value [tokens, value dim], log_decay and beta [tokens].

    `state` [key dim, value dim] is the state before the first token. Returns the reads like value, and the state
    after the last.
    """
    out = torch.empty_like(value)
    for token in range(key.shape[0]):
        state = state * torch.exp(log_decay[token])
        correction = beta[token] * (value[token] - key[token] @ state)
        state = state + torch.outer(key[token], correction)
        out[token] = query[token] @ state
    return out, state
