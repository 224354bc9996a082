"""The recurrences over one row's tokens in chunks, by matrix products, for all three rules.

With G the sum of log decays from a chunk's start, S the state before it and C_ij = sum_k x_ik exp(G_ik - G_jk) k_jk,
reads are (q * exp(G)) S + C(q) d, j up to i, and the corrections solve (I + beta C(k)) d = beta (v - (k * exp(G)) S), j
before i; without corrections d = beta v. Chunk borders are absolute positions of the sequence, so that a chunk's
numbers do not depend on where a prefill was cut.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.rule import Rule

CHUNK_TOKENS = 64
# Where channels decay apart, C needs exp for every pair of tokens and channel: fewer pairs in smaller chunks.
VECTOR_CHUNK_TOKENS = 16


def extend(rule: Rule, inputs: RecurrentInputs, memory: Tensor, depth: int) -> Tensor:
    """Tokens of one row from position `depth` on; `memory` [groups, heads, key dim, value dim] is its slot's matrix,
    moved on. Returns reads like inputs.value.
    """
    size = VECTOR_CHUNK_TOKENS if rule.vector_decay else CHUNK_TOKENS
    count = inputs.value.shape[0]
    before = depth % size
    after = -(before + count) % size

    def chunked(x: Tensor) -> Tensor:
        # Padding tokens have key 0, beta 0 and log decay 0: they change nothing. [tokens, ..., dim] -> [chunk, ...,
        # size, dim]
        whole = pad(x, (0, 0) * (x.dim() - 1) + (before, after))
        chunks: Tensor = whole.unflatten(0, (-1, size))
        return chunks.movedim(1, -2)

    query, key = chunked(inputs.query).unsqueeze(2), chunked(inputs.key).unsqueeze(2)  # [chunk, group, 1, size, dim]
    value, beta = chunked(inputs.value), chunked(inputs.beta.unsqueeze(-1))  # [chunk, group, head, size, dim], dim 1
    decays = inputs.log_decay if rule.vector_decay else inputs.log_decay.unsqueeze(-1)
    # Differences of these sums count, which after a steep decay are small beside the sums: hence in double.
    total = chunked(decays).cumsum(-2, dtype=torch.float64)  # [chunk, group, head, size, 1 or key dim]
    later = torch.ones(size, size, dtype=torch.bool, device=key.device).triu(1)
    state = memory.clone()
    reads = torch.empty_like(value)
    for chunk in range(value.shape[0]):
        q, k, v, b, sums = query[chunk], key[chunk], value[chunk], beta[chunk], total[chunk]
        rise, fall = sums.float().exp(), (sums[..., -1:, :] - sums).float().exp()
        between = _between(sums, later)
        if rule.corrected:
            wanted = b * (v - (k * rise) @ state)
            # solve_triangular takes the unit diagonal as given and does not read it.
            products = b * _products(k, k, between)
            change = torch.linalg.solve_triangular(products, wanted, upper=False, unitriangular=True)
        else:
            change = b * v
        torch.add((q * rise) @ state, _products(q, k, between) @ change, out=reads[chunk])
        state = state * rise[..., -1:, :].transpose(-1, -2) + (k * fall).transpose(-1, -2) @ change
    memory.copy_(state)
    out = reads.movedim(3, 1).flatten(0, 1)[before : before + count]
    return out if inputs.skip is None else out + inputs.skip.unsqueeze(2) * inputs.value


def _between(sums: Tensor, later: Tensor) -> Tensor:
    """exp(G_i - G_j), zero for later j: [group, head, size, size, 1 or key dim]."""
    differences = (sums.unsqueeze(-2) - sums.unsqueeze(-3)).float()
    # exp only of what is masked to -inf first: there the difference is positive and could overflow.
    return differences.masked_fill_(later.unsqueeze(-1), float("-inf")).exp_()


def _products(x: Tensor, key: Tensor, between: Tensor) -> Tensor:
    """C: [group, head, size, size]."""
    if between.shape[-1] == 1:
        return (x @ key.transpose(-1, -2)) * between.squeeze(-1)
    return torch.einsum("ghik,ghijk,ghjk->ghij", x.expand(*between.shape[:3], -1), between, key)
