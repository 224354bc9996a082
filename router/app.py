"""The front door as an ASGI application: paths, and what stands before all of them."""

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from router.door import Door
from router.generate import chat_endpoint, completion_endpoint
from router.http import MethodNotAllowed, RouteNotFound, error_response
from router.pages import Pages
from router.shell import Shell
from router.snapshots.folders import Folders
from router.snapshots.pages import SnapshotPages
from router.snapshots.resume import Resume
from segue.errors import ServingError

log = logging.getLogger("segue.router")


def build_app(shell: Shell) -> ASGIApp:
    """All endpoints of one router. The fleet in `shell` must be entered while the application serves."""
    pages, folders = Pages(shell), Folders(shell.fleet, shell.config)
    snapshots = SnapshotPages(shell, folders)
    routes = [
        Route("/v1/chat/completions", chat_endpoint(shell), methods=["POST"]),
        Route("/v1/completions", completion_endpoint(shell), methods=["POST"]),
        _get("/v1/models", pages.models),
        _get("/v1/models/{name:path}", pages.model),
        _get("/version", pages.version),
        _get("/workers", pages.workers),
        _get("/health", pages.health),
        _get("/health_generate", pages.health_generate),
        _get("/readiness", pages.readiness),
        _get("/liveness", pages.liveness),
        _get("/metrics", pages.metrics),
        Route("/v1/requests/{request_id:path}/snapshot", snapshots.take, methods=["POST"]),
        _get("/v1/snapshots", snapshots.list),
        _get("/v1/snapshots/{snapshot_id}", snapshots.inspect),
        Route("/v1/snapshots/{snapshot_id}", snapshots.delete, methods=["DELETE"]),
        Route("/v1/snapshots/{snapshot_id}/resume", Resume(shell, folders), methods=["POST"]),
        Route("/tokenize", pages.tokenize, methods=["POST"]),
        Route("/detokenize", pages.detokenize, methods=["POST"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _no_such_page, ServingError: _refuse, Exception: _break},
    )
    # A path with one slash too many is not there; a client that is sent elsewhere may not repeat its body.
    app.router.redirect_slashes = False
    return Door(app, shell.config.api_key, shell.config.admin_key)


def _get(path: str, page: Callable[[Request], Awaitable[Response]]) -> Route:
    return Route(path, page, methods=["GET"])


async def _no_such_page(request: Request, error: Exception) -> Response:
    """Starlette's own refusals."""
    assert isinstance(error, HTTPException), "registered for this class only"
    if error.status_code == 405:
        return error_response(MethodNotAllowed(f"{request.method} is not allowed on {request.url.path}"))
    return error_response(RouteNotFound(f"there is nothing at {request.url.path}"))


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServingError), "registered for this class only"
    level = logging.WARNING if error.kind.http >= 500 else logging.DEBUG
    log.log(level, "request %s: %s", request.scope["request_id"], error.message)
    return error_response(error)


async def _break(request: Request, error: Exception) -> Response:
    """Our own mistake: the client learns no more than that; the traceback goes to the log after this."""
    return error_response(ServingError(f"the router failed on request {request.scope['request_id']}"))
