"""Multiplication by a constant matrix in tiles of one fixed height: a row's result is the same bits in any batch.

A product picks kernel and order of sums by its number of rows. In tiles of one height that choice is always the
same, and within a tile a row's result depends neither on its place nor on the other rows (a test watches over it).
"""

import torch
from torch import Tensor

from segue.kernels.interface import Matrix

TILE_ROWS = 16


class TiledMatrix:
    """Multiplies by another matrix, always with TILE_ROWS rows."""

    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        if rows == TILE_ROWS:
            return self._matrix(x.contiguous())
        padded = x.new_zeros(-(-rows // TILE_ROWS) * TILE_ROWS, x.shape[1])
        padded[:rows] = x
        return torch.cat([self._matrix(tile) for tile in padded.split(TILE_ROWS)])[:rows]
