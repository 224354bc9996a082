"""What a command makes of a router's answers: events of a stream, and errors in the server's own words."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx

from segue.errors import ServingError, WorkerUnavailable


@contextlib.contextmanager
def reaching(http: httpx.Client) -> Iterator[None]:
    """Raises WorkerUnavailable for a server that does not answer."""
    try:
        yield
    except httpx.TransportError as error:
        raise WorkerUnavailable(f"{http.base_url} does not answer ({error}); is `segue serve` up?") from error


def require_success(answer: httpx.Response) -> None:
    """Raises ServingError with what the server says."""
    if not answer.is_error:
        return
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    raise ServingError(f"the server answered {answer.status_code}: {message}")


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events of a stream. Raises ServingError for a refusal, and for a stream that fails after it has begun."""
    if answer.is_error:
        answer.read()
    require_success(answer)
    for line in answer.iter_lines():
        data = line.removeprefix("data: ")
        if data == line or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise ServingError(event["error"]["message"])
        yield event
