"""On a CUDA device codes, scales and what they stand for are those of the definition."""

import pytest
import torch

from segue.kernels.quantization import codes, reference
from segue.kernels.scratch import Scratch
from tests.kernels.test_quantization import awkward_vectors

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", awkward_vectors())
def test_codes_and_scales_are_those_of_the_definition(name: str) -> None:
    x = awkward_vectors()[name]
    wanted, wanted_scales = reference.quantize(x)
    found, scales = codes.quantize(x.cuda())
    assert torch.equal(scales.cpu(), wanted_scales)
    assert torch.equal(found.cpu().view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_code_is_expanded_to_its_number(dtype: torch.dtype) -> None:
    every = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    every = every[(every & 0x7F) != 0x7F]
    found = codes.expand("numbers", every.view(torch.int8).cuda(), dtype, Scratch())
    wanted = reference.dequantize(every.view(torch.float8_e4m3fn), torch.ones(1))
    assert torch.equal(found.cpu().float() * codes.code_unit(found.device), wanted)
