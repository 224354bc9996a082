"""Vectors in 8 bits by their definition, the nearest of a list of numbers: what other implementations must equal."""

import torch
from torch import Tensor

CODE_MAX = 448.0
"""The largest number of float8 e4m3."""
SCALE_MIN = torch.finfo(torch.float32).tiny
SCALE_MAX = torch.finfo(torch.float32).max / CODE_MAX

_NAN, _SIGN = 0x7F, 0x80


def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [.., dim] (float8 e4m3) and scales [.., 1] (fp32) of vectors x [.., dim].

    A scale makes its vector's largest number the largest code. Each code is the one nearest to number / scale, of two
    equally near ones the even one. A vector of zeros has codes of zero; an infinite number becomes a finite one; all
    of a vector with a NaN is NaN.
    """
    x = x.float()
    # Not a division: by a constant, devices do not round it alike.
    scales = (x.abs().amax(-1, keepdim=True) * (1 / CODE_MAX)).clamp(SCALE_MIN, SCALE_MAX)
    wanted = (x / scales).abs().clamp(max=CODE_MAX).double()
    below = torch.zeros(x.shape, dtype=torch.int64)
    numbers = _numbers()
    for code in range(1, len(numbers)):
        below += wanted >= numbers[code]
    above = (below + 1).clamp(max=len(numbers) - 1)
    distance = (wanted - numbers[below]) - (numbers[above] - wanted)
    even = torch.where(below % 2 == 0, below, above)
    nearest = torch.where(distance < 0, below, torch.where(distance > 0, above, even))
    codes = torch.where(scales.isnan(), _NAN, nearest) + _SIGN * torch.signbit(x)
    return codes.to(torch.uint8).view(torch.float8_e4m3fn), scales


def dequantize(codes: Tensor, scales: Tensor) -> Tensor:
    """The vectors [.., dim] that codes and scales stand for, in fp32."""
    bits = codes.view(torch.uint8).to(torch.int64)
    numbers = torch.cat((_numbers(), torch.tensor([torch.nan], dtype=torch.float64)))[bits & ~_SIGN]
    return torch.where(bits < _SIGN, numbers, -numbers).float() * scales


def _numbers() -> Tensor:
    """What the codes 0 .. 126 stand for: 4 bits of exponent, 3 of fraction; of the smallest, no leading one."""
    codes = torch.arange(_NAN, dtype=torch.float64)
    exponent, fraction = codes // 8, codes % 8
    return torch.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0 ** (exponent - 7))
