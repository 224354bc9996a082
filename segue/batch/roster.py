"""The requests of one engine that are live, or read from outside its steps after their end; owns no state of theirs."""

from segue.batch.lifecycle import Phase
from segue.batch.news import Ended
from segue.batch.request import Request
from segue.errors import SnapshotNotReady
from segue.ids import Handle


class Roster:
    """By handle. A request that is pinned is read from outside, and keeps its state however it ends."""

    def __init__(self) -> None:
        self._live: dict[Handle, Request] = {}
        # Some of them have ended.
        self._pinned: dict[Handle, Request] = {}
        self._ended: list[Ended] = []

    @property
    def live(self) -> tuple[Request, ...]:
        return tuple(self._live.values())

    @property
    def empty(self) -> bool:
        """Whether no request is live, and nobody reads what one has left."""
        return not self._live and not self._pinned

    def enter(self, request: Request) -> None:
        self._live[request.handle] = request

    def require_new(self, handle: Handle) -> None:
        """Asserts that nobody has the handle."""
        assert handle not in self._live, f"handle {handle} is in use"
        assert handle not in self._pinned, f"handle {handle} is still being read"

    def find(self, handle: Handle, attempt: int) -> Request | None:
        """The live request of that handle, if it is of that attempt."""
        request = self._live.get(handle)
        return request if request is not None and request.attempt == attempt else None

    def close(self, request: Request, phase: Phase) -> None:
        """The request has ended."""
        request.move(phase)
        del self._live[request.handle]

    def tell(self, ended: Ended) -> None:
        """A request has ended outside a step."""
        self._ended.append(ended)

    def take_told(self) -> list[Ended]:
        """What was told since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def pin(self, handle: Handle, attempt: int) -> None:
        request = self.find(handle, attempt)
        assert request is not None, f"handle {handle} is gone, there is nothing to pin"
        assert not request.pinned
        request.pinned = True
        self._pinned[handle] = request

    def pinned(self, handle: Handle) -> Request:
        return self._pinned[handle]

    def unpin(self, request: Request) -> bool:
        """Returns whether it has ended."""
        del self._pinned[request.handle]
        request.pinned = False
        return request.phase in (Phase.FINISHED, Phase.ABORTED)

    def park(self, handle: Handle, attempt: int) -> Request | None:
        """Pins a decoding request, which stands still from now on. None when it is gone.

        Raises SnapshotNotReady when no whole state of it is here now.
        """
        request = self.find(handle, attempt)
        if request is None:
            return None
        if not request.stands_whole:
            raise SnapshotNotReady(
                f"request {request.request_id} is {request.phase.value}: no whole state of it is here now"
            )
        self.pin(handle, attempt)
        request.move(Phase.HANDING_OVER)
        return request

    def next_deadline(self) -> float | None:
        """The earliest deadline of a live request, on the engine's clock."""
        return min((one.deadline for one in self._live.values() if one.deadline is not None), default=None)

    def overdue(self, now: float) -> list[Request]:
        """Live requests whose deadline has passed."""
        return [one for one in self._live.values() if one.deadline is not None and one.deadline <= now]
