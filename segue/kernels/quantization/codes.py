"""To codes and back for many vectors at once, on any device; the same bits wherever in a batch a vector stands."""

import torch
from torch import Tensor

from segue.kernels.quantization.reference import CODE_MAX, SCALE_MAX, SCALE_MIN
from segue.kernels.scratch import Scratch

# A code moved by 7 bits is an fp16 number of the same sign, exponent field and digits, whose exponent counts from 15
# instead of 7.
_HALF_SHIFT, _HALF_MASK, _HALF_UNIT = 7, ~0x4000, 256.0


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [.., dim] as int8 (the bits of float8 e4m3) and scales [.., 1] in fp32 of vectors x [.., dim]."""
    x = x.float()
    scales = torch.linalg.vector_norm(x, torch.inf, -1, True).mul_(1 / CODE_MAX).clamp_(SCALE_MIN, SCALE_MAX)
    # Infinite numbers are still too large, of which not every torch makes the largest code.
    codes = torch.div(x, scales).clamp_(-CODE_MAX, CODE_MAX).to(torch.float8_e4m3fn)
    return codes.view(torch.int8), scales


def code_unit(device: torch.device) -> float:
    """What one stands for in the numbers that `expand` gives on a device: a power of two."""
    return _HALF_UNIT if device.type == "cpu" else 1.0


def expand(use: str, codes: Tensor, dtype: torch.dtype, scratch: Scratch) -> Tensor:
    """Codes (int8) as numbers in units of `code_unit`, in a buffer of that use; NaN codes are left to their scales."""
    numbers = scratch.buffer(use, tuple(codes.shape), dtype, codes.device)
    if codes.device.type != "cpu":
        return numbers.copy_(codes.view(torch.float8_e4m3fn))
    # Ten times as fast as torch's own conversion, which takes one number after another.
    halves = scratch.buffer("halves", tuple(codes.shape), torch.int16, codes.device)
    halves.copy_(codes).bitwise_left_shift_(_HALF_SHIFT).bitwise_and_(_HALF_MASK)
    return numbers.copy_(halves.view(torch.float16))
