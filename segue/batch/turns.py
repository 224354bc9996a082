"""Which queued prompts may be computed: those whose receivers promised room for the result; pure policy.

A receiver is asked a little ahead of a prompt's turn. A prompt whose promise is pending holds nothing and blocks no
other. For an output that has begun it is asked at once: it may keep room for that one, which others that were asked for
wait for.
"""

from collections.abc import Callable, Sequence

from segue.batch.request import Request
from segue.ids import Handle, WorkerId


class Turns:
    """Asks and promises of the queued prompts. `ahead` bounds the asks for new ones that are pending at a receiver."""

    def __init__(self, ahead: int) -> None:
        assert ahead >= 1
        self._ahead = ahead
        self._receivers: dict[Handle, WorkerId] = {}
        self._asked: set[Handle] = set()
        self._granted: set[Handle] = set()

    def enter(self, handle: Handle, receiver: WorkerId) -> None:
        """A prompt is queued for a receiver."""
        self._receivers[handle] = receiver

    def leave(self, handle: Handle) -> None:
        """The prompt is computed from now on, or not wanted any more."""
        self._receivers.pop(handle, None)
        self._asked.discard(handle)
        self._granted.discard(handle)

    def grant(self, handle: Handle) -> None:
        """The receiver promised room. Nothing happens when the prompt has left the queue."""
        if handle in self._receivers:
            self._granted.add(handle)

    def may_start(self, request: Request) -> bool:
        """Whether the prompt may be computed. One whose first token is its last has nothing to hand over."""
        return request.handle in self._granted or ends_with_first_token(request)

    def take_due(self, waiting: Sequence[Request], fits: Callable[[Request], bool]) -> list[Request]:
        """Prompts to ask for now, in queue order; from here on they count as asked.

        Own room comes first: nobody is asked for a prompt that could not start here, nor for those behind it.
        """
        pending: dict[WorkerId, int] = {}
        begun = {request.handle for request in waiting if request.output}
        for handle in self._asked - self._granted - begun:
            pending[self._receivers[handle]] = pending.get(self._receivers[handle], 0) + 1
        due = []
        for request in waiting:
            receiver = self._receivers[request.handle]
            if request.handle in self._asked or ends_with_first_token(request):
                continue
            if pending.get(receiver, 0) >= self._ahead and not request.output:
                continue
            if not fits(request):
                break
            if not request.output:
                pending[receiver] = pending.get(receiver, 0) + 1
            self._asked.add(request.handle)
            due.append(request)
        return due


def ends_with_first_token(request: Request) -> bool:
    """Whether the output budget ends with the token that the prompt's own computation gives."""
    return len(request.output) + 1 >= request.sampling.max_tokens
