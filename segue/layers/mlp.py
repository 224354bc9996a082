"""The gated feed-forward layer (SwiGLU; Shazeer, 2020)."""

from torch import Tensor

from segue.kernels.interface import Kernels, Matrix


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, kernels: Kernels, inward: Matrix, outward: Matrix) -> None:
        """`inward` gives [gate | up]."""
        self._kernels, self._inward, self._outward = kernels, inward, outward

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, hidden] -> [T, hidden], a new tensor."""
        gate_up = self._inward(x)
        gate, up = gate_up.view(-1, 2, gate_up.shape[1] // 2).unbind(1)
        return self._outward(self._kernels.silu(gate).mul_(up))

    def add_to(self, total: Tensor, x: Tensor) -> None:
        """Adds the layer's output for x [T, hidden] to `total`, in place."""
        total.add_(self(x))
