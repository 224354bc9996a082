"""Requests whose state other workers compute: who waits for room, in one line, and who was promised it; pure policy.

A request that merely waits owns nothing. Its sender asks when its turn there is near; from then on it stands in line
here, whichever sender asked for it. A promise commits what the request is expected to need, as admission does. An
output that has begun, and whose sender is called again, has its room committed before that asks.
"""

from segue.batch.lifecycle import Phase
from segue.batch.request import Request


class Incoming:
    """The AWAITING requests of one worker, each in exactly one of four places."""

    def __init__(self) -> None:
        self._unasked: list[Request] = []
        self._line: list[Request] = []
        self._promised: list[Request] = []
        self._news: list[Request] = []
        self._recalled: list[Request] = []
        self._to_call: list[Request] = []

    @property
    def waiting_count(self) -> int:
        """Requests without a promise."""
        return len(self._unasked) + len(self._line) + len(self._recalled)

    @property
    def promised(self) -> tuple[Request, ...]:
        return tuple(self._promised)

    @property
    def recalled(self) -> tuple[Request, ...]:
        """Requests whose senders are called again and have not asked yet, with room that is kept for them."""
        return tuple(self._recalled)

    @property
    def committed(self) -> tuple[Request, ...]:
        """Requests that do not run yet, and whose room nobody else may be given."""
        return (*self._promised, *self._recalled)

    @property
    def head(self) -> Request | None:
        """Whose turn it is."""
        return self._line[0] if self._line else None

    def expect(self, request: Request) -> None:
        """A sender will be called for the request."""
        assert request.phase is Phase.AWAITING
        self._unasked.append(request)

    def ask(self, request: Request) -> None:
        """The request's sender wants a promise. Asking again changes nothing."""
        if request in self._recalled:
            self._recalled.remove(request)
            if request.tables is None:
                # The room that was kept for it is somebody else's by now.
                self._line.insert(0, request)
                return
            self._promised.append(request)
            self._news.append(request)
        elif request in self._unasked:
            self._unasked.remove(request)
            self._line.append(request)

    def recall(self, request: Request) -> None:
        """There is room for a request whose state was lost: its sender is to be called again.

        An output that has not begun stands in line like a new one when its sender's turn comes: no sender asks for it
        out of turn (Turns), and whoever is before it there may wait for the room that was kept for it here.
        """
        assert request.phase is Phase.AWAITING
        (self._recalled if request.output else self._unasked).append(request)
        self._to_call.append(request)

    def take_recalled(self) -> list[Request]:
        """Requests whose senders are to be called again."""
        recalled, self._to_call = self._to_call, []
        return recalled

    def promise(self) -> None:
        """The head of the line gets its promise."""
        request = self._line.pop(0)
        self._promised.append(request)
        self._news.append(request)

    def take_promised(self) -> list[Request]:
        """Requests that got their promise since the last call and still wait for their state."""
        news, self._news = self._news, []
        return news

    def is_promised(self, request: Request) -> bool:
        return request in self._promised

    def drop(self, request: Request) -> None:
        """The request's state arrived, or will not."""
        for place in (self._unasked, self._line, self._promised, self._news, self._recalled, self._to_call):
            if request in place:
                place.remove(request)
