"""Vectors in 8 bits equal their definition, code for code, wherever in a batch they stand; nothing makes them NaN."""

import pytest
import torch
from torch import Tensor

from segue.kernels.quantization import codes, reference
from segue.kernels.scratch import Scratch
from tests.kernels.poisoned import noise

FLOAT8 = torch.float8_e4m3fn
LARGEST = torch.finfo(torch.float32).max
# Numbers of float8 e4m3 and what lies halfway between them, at a scale of one.
GRID = torch.arange(127, dtype=torch.uint8).view(FLOAT8).float()
HALFWAY = torch.cat((GRID, (GRID[1:] + GRID[:-1]) / 2, torch.tensor([448.0])))


def awkward_vectors() -> dict[str, Tensor]:
    return {
        "noise": noise(300, 64),
        "of mixed sizes": noise(300, 64) * 10.0 ** noise(300, 64, seed=1),
        "large": noise(50, 64) * 1e37,
        "small": noise(50, 64) * 1e-37,
        "below the smallest scale": noise(50, 64) * 1e-41,
        "halfway between codes": torch.stack((HALFWAY, -HALFWAY)),
        "just past halfway": torch.stack(
            (HALFWAY.nextafter(HALFWAY + 1), HALFWAY.nextafter(HALFWAY - 1).clamp(max=448))
        ),
        "zeros": torch.zeros(3, 64),
        "negative zeros": -torch.zeros(3, 64),
        "infinite": torch.tensor([[1.0, torch.inf, -2.0, -torch.inf], [LARGEST, -LARGEST, 1.0, 0.0]]),
        "one number": noise(20, 1),
        "odd": noise(20, 15),
    }


@pytest.mark.parametrize("name", awkward_vectors())
def test_codes_and_scales_are_those_of_the_definition(name: str) -> None:
    x = awkward_vectors()[name]
    wanted, wanted_scales = reference.quantize(x)
    found, scales = codes.quantize(x)
    assert torch.equal(scales, wanted_scales)
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("name", awkward_vectors())
def test_codes_stand_for_numbers_near_those_they_were_made_of(name: str) -> None:
    x = awkward_vectors()[name]
    back = reference.dequantize(*reference.quantize(x))
    assert bool(back.isfinite().all())
    finite = x.clamp(-LARGEST, LARGEST)
    largest = finite.abs().amax(-1, keepdim=True)
    # Four digits of two, and near zero the distance of the smallest codes.
    allowed = torch.maximum(finite.abs() / 16, torch.maximum(largest / 448, torch.tensor(reference.SCALE_MIN)) / 512)
    assert bool(((back - finite).abs() <= allowed * 1.0001).all())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_of_16_bits_have_the_codes_of_the_same_numbers_in_32(dtype: torch.dtype) -> None:
    x = noise(40, 64).to(dtype)
    for ours, wanted in zip(codes.quantize(x), reference.quantize(x.float()), strict=True):
        assert torch.equal(ours.view(torch.uint8), wanted.view(torch.uint8))


def test_a_vector_with_a_nan_is_nan_and_its_neighbours_are_not() -> None:
    x = noise(3, 8)
    x[1, 2] = float("nan")
    found, scales = codes.quantize(x)
    back = codes.expand("numbers", found, torch.float32, Scratch()) * scales
    assert bool(back[1].isnan().all())
    assert bool(back[[0, 2]].isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_code_is_expanded_to_its_number(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    every = every[(every & 0x7F) != 0x7F]
    found = codes.expand("numbers", every.view(torch.int8), dtype, Scratch())
    wanted = reference.dequantize(every.view(FLOAT8), torch.ones(1))
    assert torch.equal(wanted, every.view(FLOAT8).float())
    assert torch.equal(found.float() * codes.code_unit(every.device), wanted)


def test_a_vector_has_the_same_codes_in_a_loop_and_in_its_tail() -> None:
    x = noise(5000, 3) * 10.0 ** noise(5000, 3, seed=1)
    whole = codes.quantize(x)
    for length in (*range(1, 40), 1003):
        for start in (0, 1, 5):
            part = slice(start, start + length)
            for found, wanted in zip(codes.quantize(x[part].clone()), whole, strict=True):
                assert torch.equal(found, wanted[part])
