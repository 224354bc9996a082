"""The gated delta rule of one row's tokens in chunks of 64, by matrix products and one triangular solve (the WY form).

Within a chunk the corrections d solve (I + L) d = beta (v - exp(g) S^T k), L_ij = beta_i exp(g_i - g_j) (k_i . k_j)
for j < i, where g sums log decays from the chunk's start and S is the state before it. Chunk borders are absolute
positions of the sequence, so that a chunk's numbers do not depend on where a prefill was cut.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from segue.kernels.gated_delta.inputs import DeltaInputs

CHUNK_TOKENS = 64


def extend(inputs: DeltaInputs, memory: Tensor, depth: int) -> Tensor:
    """Tokens of one row from position `depth` on; `memory` [groups, heads, key dim, value dim] is its slot, moved
    on.
    """
    (query, key), value = inputs.query_key.unbind(2), inputs.value
    count = key.shape[0]
    before = depth % CHUNK_TOKENS
    after = -(before + count) % CHUNK_TOKENS

    def chunked(x: Tensor) -> Tensor:
        # Padding tokens have key 0, beta 0 and log decay 0: they change nothing. [tokens, ..., dim] -> [chunk, ...,
        # 64, dim]
        whole = pad(x, (0, 0) * (x.dim() - 1) + (before, after))
        chunks: Tensor = whole.unflatten(0, (-1, CHUNK_TOKENS))
        return chunks.movedim(1, -2)

    q, k = chunked(query).unsqueeze(2), chunked(key).unsqueeze(2)  # [chunk, group, 1, 64, dim]
    v, b = chunked(value), chunked(inputs.beta.unsqueeze(-1))  # [chunk, group, head, 64, dim], and dim 1
    # Differences of these sums count, which after a steep decay are small beside the sums: hence in double.
    total = chunked(inputs.log_decay.unsqueeze(-1)).cumsum(-2, dtype=torch.float64)  # [chunk, group, head, 64, 1]
    later = torch.ones(CHUNK_TOKENS, CHUNK_TOKENS, dtype=torch.bool, device=key.device).triu(1)
    # exp only of what is masked to -inf first: above the diagonal the difference is positive and could overflow.
    between = (total - total.transpose(-1, -2)).float().masked_fill_(later, float("-inf")).exp_()
    rise, fall = total.float().exp(), (total[..., -1:, :] - total).float().exp()
    products = k @ k.transpose(-1, -2)
    reads = q @ k.transpose(-1, -2)
    # solve_triangular takes the unit diagonal as given and does not read it.
    solved = torch.linalg.solve_triangular(
        products * between * b, torch.cat([v * b, k * rise * b], -1), upper=False, unitriangular=True
    )
    fresh, through = solved.split([v.shape[-1], k.shape[-1]], -1)
    inside = reads * between
    outward, inward = q * rise, (k * fall).transpose(-1, -2)
    whole_decay = rise[..., -1:, :]
    state = memory.clone()
    out = torch.empty_like(fresh)
    for chunk in range(out.shape[0]):
        correction = fresh[chunk] - through[chunk] @ state
        out[chunk] = outward[chunk] @ state + inside[chunk] @ correction
        state = state * whole_decay[chunk] + inward[chunk] @ correction
    memory.copy_(state)
    return out.movedim(3, 1).flatten(0, 1)[before : before + count]
