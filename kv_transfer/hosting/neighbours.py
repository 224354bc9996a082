"""Workers of one process, which can copy state from one to the other; empty where each has a process."""

from segue.ids import WorkerId
from segue.state.regions import Regions


class Neighbours:
    """Made by whoever starts several workers in one process, and given to each of them."""

    def __init__(self) -> None:
        self._regions: dict[WorkerId, Regions] = {}

    def enter(self, worker_id: WorkerId, regions: Regions) -> None:
        """A worker's memory may be written by the others."""
        self._regions[worker_id] = regions

    def leave(self, worker_id: WorkerId) -> None:
        """The worker has ended."""
        self._regions.pop(worker_id, None)

    def regions(self, worker_id: WorkerId) -> Regions | None:
        """None for a worker that is not of this process, or has ended."""
        return self._regions.get(worker_id)
