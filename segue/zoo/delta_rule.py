"""The gated delta rule in chunk form, written for training: everything inside a chunk is batched matrix products.

Per head, token by token: S <- e^g S; S <- S + beta k (v - S^T k)^T; o = S^T q. Over a chunk of C tokens, with G the
running sum of g, this is one affine map of the state, S' = M S + N, and o = Q S + O (Yang et al., "Gated Delta
Networks", 2024, section 3.3, solved here for M, N, Q, O so that the sequential part is one product a chunk).
"""

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx

CHUNK_TOKENS = 64


def chunk_system(k: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """The strictly lower part of the unit triangular system that parts the chunk's updates from one another.

    k [key heads, chunks, C, key dim]; g, beta [value heads, chunks, C]. Returns [value heads, chunks, C, C].
    """
    groups = g.shape[0] // k.shape[0]
    products = (k @ k.transpose(-1, -2)).repeat_interleave(groups, dim=0)
    return (products * beta.unsqueeze(-1) * _pair_decay(g)).tril(-1)


def chunk_terms(
    inverse: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M [heads, chunks, K, K], N [heads, chunks, K, V], Q [heads, chunks, C, K] and O [heads, chunks, C, V].

    inverse [value heads, chunks, C, C]; q, k [key heads, chunks, C, K], normalised; v [value heads, chunks, C, V].
    """
    groups = g.shape[0] // k.shape[0]
    decay = g.cumsum(-1).unsqueeze(-1)
    decay_end = decay[..., -1:, :]
    attention = (q @ k.transpose(-1, -2)).repeat_interleave(groups, dim=0) * _pair_decay(g)
    q, k = q.repeat_interleave(groups, dim=0), k.repeat_interleave(groups, dim=0)
    beta = beta.unsqueeze(-1)
    # What each token writes is u - w S: u from the chunk's own values, w S what the old state already says.
    u = inverse @ (v * beta)
    w = inverse @ (k * beta * decay.exp())
    k_end = (k * (decay_end - decay).exp()).transpose(-1, -2)
    identity = torch.eye(k.shape[-1], dtype=k.dtype, device=k.device)
    m = decay_end.exp() * identity - k_end @ w
    return m, k_end @ u, q * decay.exp() - attention @ w, attention @ u


def _pair_decay(g: Tensor) -> Tensor:
    """e^(G_i - G_j) for i >= j, else zero."""
    total = g.cumsum(-1)
    difference = total.unsqueeze(-1) - total.unsqueeze(-2)
    # Masked before exp: above the diagonal the difference is positive and may overflow.
    lower = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).tril()
    return difference.masked_fill(~lower, float("-inf")).exp()


def unit_lower_inverse(strictly_lower: Tensor) -> Tensor:
    """(I + A)^-1 for strictly lower A [..., C, C], C a power of two.

    By halves, inv [[P, 0], [R, T]] = [[p, 0], [-t R p, t]]: no sum of powers, which would cancel.
    """
    inverse: Tensor = _UnitLowerInverse.apply(strictly_lower)  # type: ignore[no-untyped-call]
    return inverse


def affine_scan(m: Tensor, n: Tensor) -> Tensor:
    """The states S_0 = 0, S_{c+1} = M_c S_c + N_c before each chunk.

    M [rows, chunks, K, K], N [rows, chunks, K, V]; returns [rows, chunks, K, V]. Forward and backward are one
    batched product a chunk; the gradient of M is one product over all chunks.
    """
    states: Tensor = _AffineScan.apply(m, n)  # type: ignore[no-untyped-call]
    return states


class _UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, strictly_lower: Tensor) -> Tensor:
        inverse = _unit_lower_inverse(strictly_lower)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: BackwardCFunction, *grads: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        gradient: Tensor = transposed @ grads[0] @ transposed
        return gradient.neg_().tril_(-1)


def _unit_lower_inverse(a: Tensor) -> Tensor:
    size = a.shape[-1]
    if size == 2:
        return torch.eye(2, dtype=a.dtype, device=a.device) - a
    half = size // 2
    blocks = torch.stack([a[..., :half, :half], a[..., half:, half:]])
    upper, lower = _unit_lower_inverse(blocks).unbind(0)
    inverse = torch.zeros_like(a, memory_format=torch.contiguous_format)
    inverse[..., :half, :half] = upper
    inverse[..., half:, half:] = lower
    inverse[..., half:, :half] = (lower @ a[..., half:, :half] @ upper).neg_()
    return inverse


class _AffineScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, m: Tensor, n: Tensor) -> Tensor:
        states = torch.zeros_like(n)
        for chunk in range(n.shape[1] - 1):
            torch.baddbmm(n[:, chunk], m[:, chunk], states[:, chunk], out=states[:, chunk + 1])
        ctx.save_for_backward(m, states)
        return states

    @staticmethod
    def backward(ctx: BackwardCFunction, *grads: Tensor) -> tuple[Tensor, Tensor]:
        m, states = tuple[Tensor, ...](ctx.saved_tensors)
        (grad,) = grads
        # adjoint[c]: what the loss says of S_{c+1}, which is also the gradient of N_c. The last chunk's map is unused.
        adjoint = torch.zeros_like(grad, memory_format=torch.contiguous_format)
        for chunk in range(grad.shape[1] - 2, -1, -1):
            torch.baddbmm(
                grad[:, chunk + 1],
                m[:, chunk + 1].transpose(-1, -2),
                adjoint[:, chunk + 1],
                out=adjoint[:, chunk],
            )
        return adjoint @ states.transpose(-1, -2), adjoint
