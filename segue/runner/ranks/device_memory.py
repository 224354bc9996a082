"""Memory of CUDA devices that rank 0 allocates and another rank opens: the same bytes to both, nothing is copied."""

from collections.abc import Sequence

import torch

from segue.batch.step import IntArray
from segue.errors import ConfigError
from segue.runner.ranks.orders import Reader, counted


def allocate(devices: Sequence[torch.device], size: int) -> list[torch.Tensor]:
    """Zeroed memory of so many bytes on each device, uint8 [size]. Raises ConfigError when one has not that much."""
    tensors = []
    for device in devices:
        try:
            tensors.append(torch.zeros(size, dtype=torch.uint8, device=device))
        except torch.cuda.OutOfMemoryError as error:
            raise ConfigError(
                f"engine.state_bytes asks for {size} bytes of state on {device}, which are not to be had there; "
                "lower it",
                param="state_bytes",
            ) from error
    return tensors


def handle(memory: torch.Tensor) -> IntArray:
    """By which another process opens the memory, while this process keeps it.

    Raises ConfigError where the allocator's memory cannot be opened by another.
    """
    try:
        shared = memory.untyped_storage()._share_cuda_()
    except RuntimeError as error:
        raise ConfigError(
            f"memory of {memory.device} cannot be shared with another rank: {error}", param="device"
        ) from error
    _, address, size, offset, counter, counter_offset, event, waits = shared
    return counted([size, offset, counter_offset, waits], list(address), list(counter), list(event))


def open_handle(values: IntArray, device: torch.device) -> torch.Tensor:
    """The memory behind a handle of `device`, uint8. What was done to it before the handle was made comes first."""
    reader = Reader(values)
    size, offset, counter_offset, waits = reader.counted().tolist()
    address, counter, event = (bytes(reader.counted().tolist()) for _ in range(3))
    reader.end()
    assert device.index is not None, "a device that two processes must mean has a number"
    storage = torch.UntypedStorage._new_shared_cuda(
        device.index, address, size, offset, counter, counter_offset, event, bool(waits)
    )
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
