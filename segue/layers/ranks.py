"""What tensor-parallel ranks do together within a forward: sums of what each has, and rows of what each has.

Every rank calls the same operations in the same order.
"""

from typing import Protocol

from torch import Tensor

from segue.kernels.interface import Matrix
from segue.state.layout import ONE_RANK, Shard


class Ranks(Protocol):
    """The ranks of one worker, seen from one of them."""

    @property
    def shard(self) -> Shard: ...

    def all_reduce(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, which are alike in shape; equal to the bit on every rank. May overwrite `part`.

        Raises RankLost.
        """

    def gather(self, part: Tensor, widths: list[int]) -> Tensor:
        """All ranks' parts [rows, widths[rank]] side by side, on rank 0; elsewhere `part`. Raises RankLost."""


class Alone:
    """One rank: nothing to add, nothing to gather."""

    shard = ONE_RANK

    def all_reduce(self, part: Tensor) -> Tensor:
        return part

    def gather(self, part: Tensor, widths: list[int]) -> Tensor:
        return part


ALONE = Alone()


class JoinedMatrix:
    """A matrix whose outputs are dealt out over ranks; rank 0 has them all."""

    def __init__(self, part: Matrix, ranks: Ranks, outputs: int) -> None:
        self._part, self._ranks = part, ranks
        size = ranks.shard.tp_size
        spans = [Shard(rank, size).span(outputs) for rank in range(size)]
        self._widths = [span.stop - span.start for span in spans]

    def __call__(self, x: Tensor) -> Tensor:
        """x [T, in] -> [T, all outputs] on rank 0, a new tensor."""
        return self._ranks.gather(self._part(x), self._widths)
