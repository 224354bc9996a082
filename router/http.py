"""The little of HTTP that every endpoint shares, on plain ASGI: bodies in, errors out, clients that leave."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.config import RouterConfig
from router.openai.events import error_object
from segue.errors import Cancelled, ErrorKind, ServingError

T = TypeVar("T")

# A client told to come back later is told when: about the time in which a few requests end.
_RETRY_AFTER_S = "1"
_RETRYABLE = (429, 503)
_DISCARDED_BYTES_MAX = 64 << 20
_DISCARD_S = 5.0


class BodyTooLarge(ServingError):
    """The request body is larger than this router takes."""

    kind = ErrorKind(413, "INVALID_ARGUMENT", "invalid_request_error", "request_too_large")


class BodyTimeout(ServingError):
    """The request body did not come in time."""

    kind = ErrorKind(408, "DEADLINE_EXCEEDED", "timeout_error", "body_timeout")


class RouteNotFound(ServingError):
    """No such path."""

    kind = ErrorKind(404, "UNIMPLEMENTED", "invalid_request_error", "not_found")


class MethodNotAllowed(ServingError):
    """The path exists, the method does not."""

    kind = ErrorKind(405, "UNIMPLEMENTED", "invalid_request_error", "method_not_allowed")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    for key, value in scope["headers"]:
        if key == name:
            assert isinstance(value, bytes), "ASGI headers are bytes"
            return value
    return None


async def read_body(scope: Scope, receive: Receive, config: RouterConfig) -> bytes:
    """The whole body. Raises BodyTooLarge, BodyTimeout, or Cancelled when the client leaves before it is complete."""
    timeout_s = config.request_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await _read_body(scope, receive, config.body_bytes_max)
    except TimeoutError as error:
        raise BodyTimeout(f"the body was not complete after {timeout_s:g} s") from error


async def _read_body(scope: Scope, receive: Receive, bytes_max: int) -> bytes:
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > bytes_max:
        await _discard(receive)
        raise BodyTooLarge(f"the body has {int(declared)} bytes, at most {bytes_max} are allowed")
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client left before its body was complete")
        part = message.get("body", b"")
        more = message.get("more_body", False)
        parts.append(part)
        size += len(part)
        if size > bytes_max:
            if more:
                await _discard(receive)
            raise BodyTooLarge(f"the body has more than {bytes_max} bytes")
        if not more:
            return b"".join(parts)


async def _discard(receive: Receive) -> None:
    """Reads on for a while: a connection closed under an unread body would take the answer with it."""
    left = _DISCARDED_BYTES_MAX
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


async def while_connected(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Runs `work`, whose body has been read, and cancels it when the client leaves; then raises Cancelled."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        finished = task.done()
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
    if not finished:
        raise Cancelled("the client left")
    return task.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_bytes(send: Send, body: bytes, content_type: bytes) -> None:
    """A whole successful response."""
    length = str(len(body)).encode()
    headers = [(b"content-type", content_type), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_response(error: ServingError) -> Response:
    """OpenAI's error body under the error's own status."""
    headers: dict[str, str] = {}
    if error.kind.http in _RETRYABLE:
        headers["retry-after"] = _RETRY_AFTER_S
    if isinstance(error, BodyTooLarge | BodyTimeout):
        # The rest of the body is still on its way; nobody will read it.
        headers["connection"] = "close"
    body = orjson.dumps(error_object(error))
    return Response(body, error.kind.http, headers, media_type="application/json")
