"""Which stream carries which session now, and how long a session may do without; sees no message."""

import asyncio
from collections.abc import Callable

from decode_service.session import Session
from decode_service.stream import Stream
from segue.errors import Cancelled


class Attachments:
    """At most one stream a session. `expired` is called for a session that was without one for the whole grace."""

    def __init__(self, grace_s: float, expired: Callable[[Session], None]) -> None:
        self._grace_s = grace_s
        self._expired = expired
        self._streams: dict[Session, Stream] = {}
        self._timers: dict[Session, asyncio.TimerHandle] = {}

    @property
    def streams(self) -> tuple[Stream, ...]:
        return tuple(self._streams.values())

    def attached(self, session: Session) -> bool:
        """Whether a stream carries the session now."""
        return session in self._streams

    def attach(self, session: Session, stream: Stream) -> None:
        """`stream` carries the session from now on; an older one, which may hang half-open, takes nothing any more."""
        if (timer := self._timers.pop(session, None)) is not None:
            timer.cancel()
        if (older := self._streams.pop(session, None)) is not None:
            older.close(Cancelled(f"another stream of router {session.router_id} took over"))
        self._streams[session] = stream

    def detach(self, session: Session, stream: Stream) -> None:
        """The stream ended. Starts the grace, unless another stream took over."""
        if self._streams.get(session) is not stream:
            return
        del self._streams[session]
        loop = asyncio.get_running_loop()
        self._timers[session] = loop.call_later(self._grace_s, self._expire, session)

    def end_grace(self) -> None:
        """No session may be without a stream from now on, and those that are have expired."""
        self._grace_s = 0.0
        for session, timer in list(self._timers.items()):
            timer.cancel()
            self._expire(session)

    def _expire(self, session: Session) -> None:
        del self._timers[session]
        self._expired(session)
