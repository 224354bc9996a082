"""The host memory that backups lie in: allocated once, pinned where a CUDA device copies from and to it."""

import weakref
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch

from decode_service.retraction.extents import Extent
from decode_service.retraction.free_memory import SystemFiles, available_bytes
from segue.errors import ConfigError
from segue.state.layout import ALIGN_BYTES
from segue.state.pool import PoolCounts
from segue.state.spec import ComponentName

SYSTEM = SystemFiles()
"""Of the machine that this process runs on."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device."""


class HostMemory(Protocol):
    """One arena and who owns what of it. Units of one component lie in their ranges in order, one after another."""

    arena: torch.Tensor
    """uint8, on the host."""

    def alloc(self, units: Sequence[tuple[ComponentName, int]]) -> list[tuple[Extent, ...]] | None:
        """Room for so many units of each component, in that order; None, and nothing is taken, when it is used up."""

    def free(self, component: ComponentName, extents: Sequence[Extent]) -> None:
        """Gives the room of one component back."""

    def counts(self) -> tuple[PoolCounts, ...]:
        """The disjoint sets, one line per pool."""

    def check(self, held: Iterable[tuple[ComponentName, Sequence[Extent]]]) -> None:
        """Asserts that exactly `held` is owned, and that all else is free."""


def host_arena(size: int, device: torch.device, files: SystemFiles = SYSTEM) -> torch.Tensor:
    """`size` bytes (rounded down to the alignment of units) whose pages are all there, pinned for a CUDA device.

    Raises ConfigError when the system does not give that much.
    """
    size -= size % ALIGN_BYTES
    available = available_bytes(files)
    if available is not None and size > available:
        raise _too_much(size, f"{available} bytes are available here")
    try:
        arena = torch.zeros(size, dtype=torch.uint8)
    except RuntimeError as error:
        raise _too_much(size, "so much host memory cannot be allocated here") from error
    if device.type == "cuda" and size:
        # torch's own pinned memory is rounded up to a power of two: a budget would be overrun by up to its double.
        cudart = torch.cuda.cudart()
        if cudart.cudaHostRegister(arena.data_ptr(), size, _PORTABLE) != cudart.cudaError.success:
            raise _too_much(size, "so much host memory cannot be pinned here")
        weakref.finalize(arena, cudart.cudaHostUnregister, arena.data_ptr()).atexit = False
    return arena


def _too_much(size: int, why: str) -> ConfigError:
    return ConfigError(
        f"retraction.host_bytes is {size}, and {why}; lower it (0: requests that are taken off the device are "
        "recomputed)",
        param="host_bytes",
    )
