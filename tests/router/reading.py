"""A client of a stream that can be asked how far it is."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.router.served import WAIT_S


class Reading:
    """Reads one stream of completions in the background."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.events: list[dict[str, Any]] = []
        self.done = False
        self.over = False
        self.rest = ""
        self._changed = asyncio.Event()

    @property
    def text(self) -> str:
        return "".join(text_of(choice) for event in self.events for choice in event.get("choices", []))

    @property
    def reports(self) -> list[object]:
        """What was said of tokens beside their text, as the endpoint says it."""
        return [report for event in self.events for choice in event.get("choices", []) for report in reports_of(choice)]

    @property
    def usage(self) -> dict[str, Any] | None:
        """That of the last event."""
        found: dict[str, Any] | None = self.events[-1].get("usage")
        return found

    @property
    def reason(self) -> str | None:
        reasons = [choice["finish_reason"] for event in self.events for choice in event.get("choices", [])]
        return reasons[-1] if reasons else None

    @property
    def error(self) -> dict[str, Any] | None:
        """The error event, or the error body of a request that never became a stream."""
        if self.status == 200:
            return self.events[-1].get("error") if self.events else None
        found: dict[str, Any] = json.loads(self.rest)["error"]
        return found

    async def until_text(self, length: int) -> None:
        """Until that many characters have come."""
        await self._until(lambda: len(self.text) >= length)

    async def until_over(self) -> None:
        await self._until(lambda: self.over)

    async def _until(self, condition: Any) -> None:  # noqa: ANN401  any callable
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def read(
        self, http: httpx.AsyncClient, body: Mapping[str, object], path: str, headers: Mapping[str, str]
    ) -> None:
        """Sends the request and reads to its end."""
        async with http.stream("POST", path, json={**body, "stream": True}, headers=headers) as got:
            self.status = got.status_code
            async for line in got.aiter_lines():
                if self.status != 200:
                    self.rest += line
                elif line == "data: [DONE]":
                    self.done = True
                elif line:
                    self.events.append(json.loads(line.removeprefix("data: ")))
                self._changed.set()
        self.over = True
        self._changed.set()


def text_of(choice: Mapping[str, Any]) -> str:
    """The text of a choice of a completion or chat, streamed or whole."""
    if "text" in choice:
        return str(choice["text"])
    return str(choice.get("delta", choice.get("message"))["content"] if choice.get("delta", True) else "")


def reports_of(choice: Mapping[str, Any]) -> list[object]:
    """The same for its logprobs: an entry for each token."""
    logprobs = choice["logprobs"]
    if logprobs is None:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    columns = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[column] for column in columns), strict=True))


@asynccontextmanager
async def reading(http: httpx.AsyncClient, **body: object) -> AsyncIterator[Reading]:
    """A stream that is read while the block runs; leaving the block leaves the stream."""
    asked = {"prompt": "x", "max_tokens": 64, **body}
    async with reading_from(http, "/v1/completions", asked, {}) as stream:
        yield stream


@asynccontextmanager
async def reading_from(
    http: httpx.AsyncClient, path: str, body: Mapping[str, object], headers: Mapping[str, str]
) -> AsyncIterator[Reading]:
    """The same for any path."""
    stream = Reading()
    task = asyncio.create_task(stream.read(http, body, path, headers))
    try:
        yield stream
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
