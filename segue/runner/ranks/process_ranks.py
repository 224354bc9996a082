"""Sums and joins over the processes of a worker, by gloo on this machine's own loopback."""

from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor
from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]  # its stub forgets one

from segue.errors import RankLost
from segue.state.layout import Shard


class Begun(Protocol):
    """An operation of a group."""

    def wait(self) -> object: ...


class Group(Protocol):
    """What is used of a group of torch.distributed, whose stubs do not have it."""

    def allreduce(self, tensors: list[Tensor]) -> Begun: ...

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> Begun: ...

    def gather(self, outputs: list[Tensor], inputs: Tensor, root: int) -> Begun: ...


class ProcessRanks:
    """One rank's end of the group (segue.layers.ranks.Ranks). With `ordered` a sum does not depend on the batch."""

    def __init__(self, shard: Shard, *, ordered: bool) -> None:
        """Knows its place at once; sums nothing before `meet`."""
        self.shard = shard
        self._met: Group | None = None
        # Two addends have one order. Of more, every element is to have the same.
        self._ordered = ordered and shard.tp_size > 2

    def meet(self, folder: str, limit_s: float) -> None:
        """Meets the other ranks, all of which do the same now; their folder is private to them.

        Raises RankLost when one does not come within `limit_s`, and later from sums that it takes no part in for so
        long.
        """
        shard = self.shard
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # so is this
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=limit_s)
        try:
            store = FileStore(str(Path(folder) / "store"), shard.tp_size)
            store.set_timeout(timedelta(seconds=limit_s))
            group = ProcessGroupGloo(store, shard.tp_rank, shard.tp_size, options)
        except RuntimeError as error:
            raise RankLost(f"rank {shard.tp_rank} of {shard.tp_size} did not meet the others: {error}") from error
        self._met = cast(Group, group)

    @property
    def _group(self) -> Group:
        assert self._met is not None, "a sum before the ranks have met"
        return self._met

    def all_reduce(self, part: Tensor) -> Tensor:
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

    def gather(self, part: Tensor, widths: list[int]) -> Tensor:
        """Raises RankLost."""
        padded = torch.zeros(part.shape[0], max(widths), dtype=part.dtype, device=part.device)
        padded[:, : part.shape[1]] = part
        leads = self.shard.tp_rank == 0
        parts = [torch.empty_like(padded) for _ in widths] if leads else []
        try:
            self._group.gather(parts, padded, 0).wait()
        except RuntimeError as error:
            raise self._lost(error) from error
        if not leads:
            return part
        return torch.cat([one[:, :width] for one, width in zip(parts, widths, strict=True)], 1)

    def _lost(self, error: RuntimeError) -> RankLost:
        return RankLost(f"a sum of {self.shard.tp_size} ranks lacks one: {str(error).splitlines()[0]}")
