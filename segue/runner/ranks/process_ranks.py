"""Sums and joins over the processes of a worker, by gloo."""

from datetime import timedelta
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]  # its stub forgets one
from torch.distributed.distributed_c10d import PrefixStore

from segue.errors import RankLost
from segue.state.layout import Shard


class Begun(Protocol):
    """An operation of a group."""

    def wait(self) -> object: ...


class Group(Protocol):
    """What is used of a group of torch.distributed, whose stubs do not have it."""

    def allreduce(self, tensors: list[Tensor]) -> Begun: ...

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Begun: ...


_MEET_S = 120.0


class ProcessRanks:
    """One rank's end of the group (segue.layers.ranks.Ranks). With `ordered` a sum does not depend on the batch."""

    def __init__(self, shard: Shard, *, ordered: bool) -> None:
        """Knows its place at once; sums nothing before `meet`."""
        self.shard = shard
        self._met: Group | None = None
        # Two addends have one order. Of more, every element is to have the same.
        self._ordered = ordered and shard.tp_size > 2

    def meet(self, store: TCPStore, limit_s: float) -> None:
        """Meets the other ranks. Raises RankLost when they do not come; so do sums in which one is missing for
        `limit_s`.
        """
        shard = self.shard
        try:
            group = ProcessGroupGloo(
                PrefixStore("ranks", store), shard.tp_rank, shard.tp_size, timedelta(seconds=_MEET_S)
            )
            group._set_default_timeout(timedelta(seconds=limit_s))
        except RuntimeError as error:
            raise RankLost(f"rank {shard.tp_rank} of {shard.tp_size} did not meet the others: {error}") from error
        self._met = cast(Group, group)

    @property
    def _group(self) -> Group:
        assert self._met is not None, "a sum before the ranks have met"
        return self._met

    def add_up(self, part: Tensor) -> Tensor:
        """Raises RankLost."""
        try:
            if not self._ordered:
                self._group.allreduce([part]).wait()
                return part
            parts = [torch.empty_like(part) for _ in range(self.shard.tp_size)]
            self._group.allgather([parts], [part]).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        total = parts[0]
        for other in parts[1:]:
            total.add_(other)
        return total

    def join(self, part: Tensor, widths: list[int]) -> Tensor:
        """Raises RankLost."""
        padded = torch.zeros(part.shape[0], max(widths), dtype=part.dtype, device=part.device)
        padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded) for _ in widths]
        try:
            self._group.allgather([parts], [padded]).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        if self.shard.tp_rank:
            return part
        return torch.cat([one[:, :width] for one, width in zip(parts, widths, strict=True)], 1)

    def _lost(self, error: RuntimeError) -> RankLost:
        return RankLost(f"rank {self.shard.tp_rank} of {self.shard.tp_size} computes alone: {error}")


def keep_store(tp_size: int) -> TCPStore:
    """Rank 0's: where the ranks of a worker find each other."""
    return TCPStore("127.0.0.1", 0, tp_size, is_master=True, wait_for_workers=False)


def reach_store(tp_size: int, port: int) -> TCPStore:
    """The same store, seen from another rank."""
    return TCPStore("127.0.0.1", port, tp_size, is_master=False)
