"""HTTP that is none, and clients that take nothing: what uvicorn leaves to chance. Knows nothing of requests.

What its parser refuses is refused in the shape of every other error. A client that stops reading is not waited for.
"""

import array
import asyncio
import fcntl
import logging
import termios
from collections.abc import Callable

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.openai.events import error_object
from segue.errors import InvalidRequest

log = logging.getLogger("segue.router")

_HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


# So often in the time that a client has, it is looked whether it has taken anything.
_LOOKS = 4


class HttpProtocol(HttpToolsProtocol):
    """One connection. It ends when its client takes nothing for `client_stall_s` while there is output for it."""

    client_stall_s = 60.0
    departed: Callable[[], None] = staticmethod(lambda: None)
    _looking: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Called when more is waiting for the client than should: from now on it is watched."""
        super().pause_writing()
        self._look_later(self._untaken(), _LOOKS)

    def resume_writing(self) -> None:
        """Called when the client has taken most of it."""
        self._look_no_more()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called however the connection ends; whoever answers on it learns that the client is gone."""
        self._look_no_more()
        super().connection_lost(exc)
        self.departed()

    def send_400_response(self, msg: str) -> None:
        """Called for bytes that cannot be read as a request, and before the connection is closed for them."""
        body = orjson.dumps(error_object(InvalidRequest("what was sent is not valid HTTP")))
        self.transport.write(_HEAD % len(body) + body)
        self.transport.close()

    def _look_later(self, waiting: int, looks: int) -> None:
        self._looking = self.loop.call_later(self.client_stall_s / _LOOKS, self._look, waiting, looks - 1)

    def _look(self, waiting: int, looks: int) -> None:
        """`waiting` bytes were waiting when the client took something last; so many more looks are granted."""
        left = self._untaken()
        if left < waiting:
            self._look_later(left, _LOOKS)
        elif looks > 0:
            self._look_later(waiting, looks)
        else:
            log.warning("client %s took nothing for %g s: its connection is closed", self.client, self.client_stall_s)
            # Not `close`, which would wait until the client has taken what it does not take.
            self.transport.abort()

    def _untaken(self) -> int:
        """Bytes that the client's side has not confirmed: ours, and those of the kernel, which asks for more rarely."""
        sent = array.array("i", [0])
        fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, sent)
        return self.transport.get_write_buffer_size() + sent[0]

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None


def http_protocol(client_stall_s: float, departed: Callable[[], None]) -> type[HttpProtocol]:
    """Connections whose clients get so long, and that say when they have ended.

    uvicorn wants a class, and gives it no settings of ours.
    """

    class Bounded(HttpProtocol):
        """One connection of one router."""

    Bounded.client_stall_s = client_stall_s
    Bounded.departed = staticmethod(departed)
    return Bounded
