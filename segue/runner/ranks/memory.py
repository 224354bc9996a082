"""Memory that all ranks of a worker map: a file without a name, which ends with the last process that has it."""

import mmap
import os
from typing import Self

import torch

from segue.errors import ConfigError


class SharedMemory:
    """One such file by its descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> Self:
        """An empty one, for children that are given its descriptor."""
        return cls(os.memfd_create("segue-state"))

    def allocate(self, size: int) -> torch.Tensor:
        """Makes it `size` bytes, all zero and all there, and maps it, uint8 [size]. Once.

        Raises ConfigError when the system does not give that much.
        """
        try:
            os.posix_fallocate(self.descriptor, 0, size)
        except OSError as error:
            raise ConfigError(
                f"engine.state_bytes and engine.tp ask for {size} bytes of state, which are not to be had here "
                f"({error.strerror}); lower one of them",
                param="state_bytes",
            ) from error
        return self.map(size)

    def map(self, size: int) -> torch.Tensor:
        """What another rank has allocated, uint8 [size]."""
        assert os.fstat(self.descriptor).st_size == size, f"the ranks disagree about {size} bytes of state"
        return torch.frombuffer(mmap.mmap(self.descriptor, size), dtype=torch.uint8)

    def close(self) -> None:
        """What is mapped stays."""
        os.close(self.descriptor)
