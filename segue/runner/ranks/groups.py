"""What carries parts of sums from rank to rank: gloo over the host's memory, NCCL between devices."""

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]  # its stub forgets one

from segue.state.layout import Shard


class Group(Protocol):
    """The ranks of one worker. A rank that is not there shows as a RuntimeError, or else `abort` ends the wait."""

    def sum(self, part: Tensor) -> Tensor:
        """Of all parts. May overwrite `part`."""

    def all_parts(self, part: Tensor) -> list[Tensor]:
        """In rank order, on every rank."""

    def gather(self, part: Tensor) -> list[Tensor]:
        """In rank order, on rank 0; elsewhere nothing."""

    def abort(self) -> None:
        """Whoever waits for another rank waits no longer, nobody waits again. From any thread, also more than once."""


def meet(folder: str, shard: Shard, devices: Sequence[torch.device], limit_s: float) -> Group:
    """The group of ranks that meet in a folder, which is private to them; NCCL's where each has a CUDA device.

    Some connect here, some with their first sum. Raises RuntimeError when a rank does not come within `limit_s`.
    """
    store = FileStore(str(Path(folder) / "store"), shard.tp_size)
    store.set_timeout(timedelta(seconds=limit_s))
    if devices[0].type == "cuda" and len(set(devices)) == len(devices):
        return NcclGroup(store, shard)
    return GlooGroup(store, shard, limit_s)


class _Begun(Protocol):
    def wait(self) -> object: ...


class _Torch(Protocol):
    """What is used of a group of torch.distributed, whose stubs do not have it."""

    def allreduce(self, tensors: list[Tensor]) -> _Begun: ...

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor]) -> _Begun: ...

    def gather(self, outputs: list[Tensor], inputs: Tensor, root: int) -> _Begun: ...

    def abort(self) -> None: ...


class GlooGroup:
    """Over this machine's own loopback. What lies on a device passes through the host's memory.

    Then a sum is also where the host waits for all that its device was given before.
    """

    def __init__(self, store: FileStore, shard: Shard, limit_s: float) -> None:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stub forgets this too
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=limit_s)
        self._shard = shard
        self._group = cast(_Torch, ProcessGroupGloo(store, shard.tp_rank, shard.tp_size, options))

    def sum(self, part: Tensor) -> Tensor:
        host = part.cpu()
        self._group.allreduce([host]).wait()
        return host.to(part.device)

    def all_parts(self, part: Tensor) -> list[Tensor]:
        host = part.cpu()
        parts = [torch.empty_like(host) for _ in range(self._shard.tp_size)]
        self._group.allgather([parts], [host]).wait()
        return [one.to(part.device) for one in parts]

    def gather(self, part: Tensor) -> list[Tensor]:
        host = part.cpu()
        parts = [torch.empty_like(host) for _ in range(self._shard.tp_size if self._shard.tp_rank == 0 else 0)]
        self._group.gather(parts, host, 0).wait()
        return [one.to(part.device) for one in parts]

    def abort(self) -> None:
        """Nothing to do: no wait is longer than the limit."""


class NcclGroup:
    """From device to device, in the order of each one's current stream; the host does not wait.

    So nothing here notices that a rank is gone: who watches the ranks calls `abort`.
    """

    def __init__(self, store: FileStore, shard: Shard) -> None:
        # Read when groups are made. A timeout of the library's would end this process; whether ranks live is asked
        # elsewhere. All ranks are on this machine: no other may reach the port by which they find each other.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        os.environ["TORCH_NCCL_ENABLE_MONITORING"] = "0"
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"
        self._shard = shard
        self._aborted = False
        # Not in every build of torch.
        options = dist.ProcessGroupNCCL.Options()
        options.global_ranks_in_group = list(range(shard.tp_size))
        self._group = cast(_Torch, dist.ProcessGroupNCCL(store, shard.tp_rank, shard.tp_size, options))

    def sum(self, part: Tensor) -> Tensor:
        self._require_whole()
        part = part.contiguous()
        self._group.allreduce([part]).wait()
        return part

    def all_parts(self, part: Tensor) -> list[Tensor]:
        self._require_whole()
        part = part.contiguous()
        parts = [torch.empty_like(part) for _ in range(self._shard.tp_size)]
        self._group.allgather([parts], [part]).wait()
        return parts

    def gather(self, part: Tensor) -> list[Tensor]:
        parts = self.all_parts(part)
        return parts if self._shard.tp_rank == 0 else []

    def abort(self) -> None:
        if not self._aborted:
            self._aborted = True
            self._group.abort()

    def _require_whole(self) -> None:
        # The library might connect anew, and wait for who does not come.
        if self._aborted:
            raise RuntimeError("a rank is gone")
