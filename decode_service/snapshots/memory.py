"""Host memory for images of states: a bound for all that one worker has at a time, whoever has them."""

import threading
import weakref
from typing import Self

from segue.errors import QueueFull, SnapshotCapacity


class ImageMemory:
    """Counts images from before they are made until nobody has them any more. Safe for threads."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes, self._counting = 0, threading.Lock()

    @property
    def bytes(self) -> int:
        """What is counted now."""
        return self._bytes

    def reserve(self, size: int) -> "Reserved":
        """Room for one image. Raises SnapshotCapacity when there never is so much, QueueFull when there is not now."""
        if size > self._bytes_max:
            raise SnapshotCapacity(
                f"an image of this state has {size} bytes, snapshot.host_bytes allows {self._bytes_max} in host memory"
            )
        with self._counting:
            if self._bytes + size > self._bytes_max:
                raise QueueFull(
                    f"images of other states take {self._bytes} bytes of host memory, {size} more were to come, "
                    f"snapshot.host_bytes allows {self._bytes_max}; retry later"
                )
            self._bytes += size
        return Reserved(self, size)

    def give_back(self, size: int) -> None:
        with self._counting:
            self._bytes -= size


class Reserved:
    """A context manager: room that is given back when the block ends, unless an image was made in it."""

    def __init__(self, memory: ImageMemory, size: int) -> None:
        self._memory = memory
        self._size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory.give_back(self._size)
        self._size = 0

    def hold(self, image: object) -> None:
        """From now on the room is that of `image`, until it is gone."""
        weakref.finalize(image, self._memory.give_back, self._size)
        self._size = 0
