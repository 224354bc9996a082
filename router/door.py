"""What every HTTP request passes: it gets a name, and shows a key; knows nothing of endpoints."""

import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.http import error_response, header
from router.request_ids import request_id_of
from segue.errors import ServingError, SnapshotsOff, Unauthorized

# Probes and dashboards do not carry keys.
OPEN_PATHS = frozenset({"/health", "/health_generate", "/liveness", "/readiness", "/metrics", "/version", "/workers"})
ADMIN_PATHS = ("/v1/snapshots", "/v1/requests")


class Door:
    """Wraps the application. Leaves the request's name in `scope["request_id"]` and in the response.

    Snapshots have a key of their own: they hold what others have asked.
    """

    def __init__(self, app: ASGIApp, api_key: str, admin_key: str) -> None:
        self._app = app
        self._api_key = api_key.encode()
        self._admin_key = admin_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            name = request_id_of(header(scope, b"x-request-id"))
        except ServingError as error:
            await error_response(error)(scope, receive, _named(send, request_id_of(None)))
            return
        scope["request_id"] = name
        try:
            self._require_key(scope)
        except ServingError as error:
            await error_response(error)(scope, receive, _named(send, name))
            return
        await self._app(scope, receive, _named(send, name))

    def _require_key(self, scope: Scope) -> None:
        if scope["path"].startswith(ADMIN_PATHS):
            if not self._admin_key:
                raise SnapshotsOff("snapshots are off at this router: router.admin_key is not set")
            if not _carries(scope, self._admin_key):
                raise Unauthorized("snapshots need router.admin_key as 'Authorization: Bearer KEY'")
        elif self._api_key and scope["path"] not in OPEN_PATHS and not _carries(scope, self._api_key):
            raise Unauthorized("this router needs an API key as 'Authorization: Bearer KEY'")


def _carries(scope: Scope, wanted: bytes) -> bool:
    scheme, _, key = (header(scope, b"authorization") or b"").partition(b" ")
    return scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), wanted)


def _named(send: Send, name: str) -> Send:
    async def named_send(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
        await send(message)

    return named_send
