"""HTTP that is none: uvicorn's parser, but what it refuses is refused in the shape of every other error."""

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.openai.events import error_object
from segue.errors import InvalidRequest

_HEAD = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """One connection."""

    def send_400_response(self, msg: str) -> None:
        """Called for bytes that cannot be read as a request, and before the connection is closed for them."""
        body = orjson.dumps(error_object(InvalidRequest("what was sent is not valid HTTP")))
        self.transport.write(_HEAD % len(body) + body)
        self.transport.close()
