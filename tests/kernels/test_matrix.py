"""Every form of a constant matrix gives the plain product, and a tiled one the same bits for a row in any company."""

import pytest
import torch

from segue.kernels.interface import Matrix
from segue.kernels.matrix.blocks import BlockMatrix
from segue.kernels.matrix.plain import PlainMatrix
from segue.kernels.matrix.tiled import TILE_ROWS, TiledMatrix
from tests.kernels.poisoned import noise

CPU = torch.device("cpu")
PARTS = [noise(70, 33), noise(1, 33, seed=1), noise(64, 33, seed=2)]
FORMS: dict[str, Matrix] = {
    "plain": PlainMatrix(PARTS, torch.float32, CPU),
    "blocks": BlockMatrix(PARTS, torch.float32),
    "tiled": TiledMatrix(BlockMatrix(PARTS, torch.float32)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [0, 1, 2, TILE_ROWS - 1, TILE_ROWS, TILE_ROWS + 1, 70])
def test_outputs_of_all_parts_stand_side_by_side(form: str, rows: int) -> None:
    x = noise(rows, 40, seed=3)[:, 5:38]
    wanted = x.double() @ torch.cat(PARTS).double().t()
    torch.testing.assert_close(FORMS[form](x), wanted.float(), rtol=1e-5, atol=1e-5)


def test_rounded_weights_are_used_as_they_are_rounded() -> None:
    rounded = [part.bfloat16() for part in PARTS]
    wanted = noise(3, 33, seed=3) @ torch.cat(rounded).float().t()
    torch.testing.assert_close(BlockMatrix(rounded, torch.float32)(noise(3, 33, seed=3)), wanted)


@pytest.mark.parametrize(("outs", "ins"), [(64, 64), (135, 33), (256, 256), (48, 1024), (5, 200)])
def test_a_tiled_row_has_the_same_bits_anywhere(outs: int, ins: int) -> None:
    matrix = TiledMatrix(BlockMatrix([noise(outs, ins)], torch.float32))
    x = noise(3 * TILE_ROWS + 5, ins, seed=4)
    alone = torch.cat([matrix(row[None]) for row in x])
    assert torch.equal(matrix(x), alone)
    assert torch.equal(matrix(x.flip(0)).flip(0), alone)
