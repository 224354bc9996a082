"""A linear layer with a bias; one without is its matrix alone."""

from torch import Tensor

from segue.kernels.interface import Matrix


class BiasedMatrix:
    """x times a matrix, plus a bias [out]."""

    def __init__(self, matrix: Matrix, bias: Tensor) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out], a new tensor."""
        return self._matrix(x).add_(self._bias)
