"""A linear layer."""

from torch import Tensor

from segue.kernels.interface import Matrix


class Projection:
    """x times a matrix, plus a bias [out] if there is one."""

    def __init__(self, matrix: Matrix, bias: Tensor | None = None) -> None:
        self._matrix = matrix
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, out], a new tensor."""
        out = self._matrix(x)
        return out if self._bias is None else out.add_(self._bias)

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Adds the result to `total` [T, out], in place."""
        total.add_(self(x))
