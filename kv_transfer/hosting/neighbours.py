"""Workers of one process, which can copy state from one arena into the other; empty where each has a process."""

import torch

from segue.ids import WorkerId


class Neighbours:
    """Made by whoever starts several workers in one process, and given to each of them."""

    def __init__(self) -> None:
        self._arenas: dict[WorkerId, torch.Tensor] = {}

    def enter(self, worker_id: WorkerId, arena: torch.Tensor) -> None:
        """A worker's arena may be written by the others."""
        self._arenas[worker_id] = arena

    def leave(self, worker_id: WorkerId) -> None:
        """The worker has ended."""
        self._arenas.pop(worker_id, None)

    def arena(self, worker_id: WorkerId) -> torch.Tensor | None:
        """None for a worker that is not of this process, or has ended."""
        return self._arenas.get(worker_id)
