"""A norm is what its formula says, and a row's bits do not depend on the rows beside it."""

import pytest
import torch

from segue.kernels.batched import BatchedKernels
from segue.kernels.interface import Kernels
from segue.kernels.tiled import TiledKernels
from segue.layers.norm import RMSNorm, UnitNorm

CPU = torch.device("cpu")
TILED, BATCHED = TiledKernels(), BatchedKernels(torch.float32, CPU)

# Of this length a row once had another last bit alone than among others: hypot rounds otherwise in the body of a
# vector loop than in its tail, for about one length in a hundred million. A soak test found it.
UNLUCKY = float.fromhex("0x1.c56b34p-2")


def unlucky_rows(dim: int = 24) -> torch.Tensor:
    """Rows that all have the unlucky length."""
    rows = []
    for seed in range(40):
        row = torch.randn(dim, generator=torch.Generator().manual_seed(seed))
        row *= UNLUCKY / torch.linalg.vector_norm(row)
        if torch.linalg.vector_norm(row[None], dim=-1).item() == UNLUCKY:
            rows.append(row)
    assert len(rows) >= 8
    return torch.stack(rows)


@pytest.mark.parametrize("norm", [RMSNorm(TILED, torch.ones(24), 16e-6), UnitNorm(TILED, 24 * 16e-6, CPU)])
def test_a_row_alone_has_the_bits_that_it_has_among_others(norm: RMSNorm | UnitNorm) -> None:
    rows = unlucky_rows().repeat(4, 1)
    alone = torch.cat([norm(row[None]) for row in rows])
    assert torch.equal(norm(rows), alone)


@pytest.mark.parametrize("kernels", [TILED, BATCHED])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_the_root_mean_square_norm_is_its_formula(scale: float, kernels: Kernels) -> None:
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(0)) * scale
    weight = torch.linspace(0.5, 2.0, 48)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(RMSNorm(kernels, weight, 1e-6)(x), exact.float(), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("kernels", [TILED, BATCHED])
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1.0, 1e4])
def test_the_unit_norm_is_its_formula(scale: float, kernels: Kernels) -> None:
    x = torch.randn(5, 48, generator=torch.Generator().manual_seed(0)) * scale
    exact = x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(UnitNorm(kernels, 1e-6, CPU)(x), exact.float(), rtol=2e-6, atol=1e-7)
