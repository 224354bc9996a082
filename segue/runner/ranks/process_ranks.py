"""Sums and joins over the processes of a worker."""

import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from segue.errors import RankLost
from segue.runner.ranks.groups import Group, meet
from segue.state.layout import Shard

_ABANDON_S = 2.0


class ProcessRanks:
    """One rank's end of the group (segue.layers.ranks.Ranks). With `ordered` a sum does not depend on the batch."""

    def __init__(self, shard: Shard, devices: Sequence[torch.device], *, ordered: bool) -> None:
        """Knows its place at once; sums nothing before `meet`. `devices` are those of all ranks."""
        self.shard = shard
        self._devices = devices
        self._met: Group | None = None
        # Two addends have one order. Of more, every element is to have the same.
        self._ordered = ordered and shard.tp_size > 2

    def meet(self, folder: str, limit_s: float) -> None:
        """Meets the other ranks, all of which do the same now; their folder is private to them.

        Raises RankLost when one does not come within `limit_s`, and later from sums that it takes no part in: for so
        long, or until `abandon`.
        """
        shard = self.shard
        try:
            self._met = meet(folder, shard, self._devices, limit_s)
            met = self._met.sum(torch.ones(1, device=self._devices[shard.tp_rank])).item()
        except RuntimeError as error:
            raise RankLost(f"rank {shard.tp_rank} of {shard.tp_size} did not meet the others: {error}") from error
        assert met == shard.tp_size, f"{met} ranks have met, not {shard.tp_size}"

    def abandon(self) -> None:
        """A rank is gone: who waits for it in a sum waits no longer. From any thread, also more than once."""
        if (group := self._met) is not None:
            # What waits for a device may take long to give up, and whoever calls has more to do.
            giving_up = threading.Thread(target=group.abort, name="abandoning ranks", daemon=True)
            giving_up.start()
            giving_up.join(_ABANDON_S)

    @property
    def _group(self) -> Group:
        assert self._met is not None, "a sum before the ranks have met"
        return self._met

    def all_reduce(self, part: Tensor) -> Tensor:
        """Raises RankLost."""
        try:
            if not self._ordered:
                return self._group.sum(part)
            parts = self._group.all_parts(part)
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
        try:
            parts = self._group.gather(padded)
        except RuntimeError as error:
            raise self._lost(error) from error
        if self.shard.tp_rank != 0:
            return part
        return torch.cat([one[:, :width] for one, width in zip(parts, widths, strict=True)], 1)

    def _lost(self, error: RuntimeError) -> RankLost:
        return RankLost(f"a sum of {self.shard.tp_size} ranks lacks one: {str(error).splitlines()[0]}")
