"""A client for streamed answers that costs next to nothing, so that a measurement is of the server and not of itself.

It notes when bytes arrived and reads the JSON in them only after the stream has ended.
"""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from benchmarks.refusal import Refused

ANSWER_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One streamed answer. Times are seconds of one clock; `chunk_times_s` are of the chunks that carried text.

    `tokens` are a chat's, with `logprobs`, where those were asked for; `leads` are how much likelier the best of two
    alternatives was than the other, where two were asked for; `cached_tokens` of the prompt were not computed.
    """

    asked_s: float
    chunk_times_s: tuple[float, ...]
    done_s: float
    text: str
    finish_reason: str
    prompt_tokens: int
    output_tokens: int
    tokens: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    leads: tuple[float, ...] = ()
    cached_tokens: int = 0

    @property
    def first_chunk_s(self) -> float:
        """Time to first token: from asking to the first text."""
        return self.chunk_times_s[0] - self.asked_s

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies: the times between chunks of text."""
        return [later - earlier for earlier, later in zip(self.chunk_times_s, self.chunk_times_s[1:], strict=False)]


async def ask(url: str, path: str, body: dict[str, object]) -> Answer:
    """Posts `body` as a streamed request and reads the answer to its end. Raises Refused for anything but an answer."""
    host = urlsplit(url)
    assert host.hostname is not None, f"{url} names no host"
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    content = json.dumps(request).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(ANSWER_TIMEOUT_S):
        transport, reading = await loop.create_connection(_Reading, host.hostname, host.port or 80)
        try:
            asked_s = time.perf_counter()
            transport.write(head.encode() + content)
            await reading.ended
        finally:
            transport.close()
    return _answer(asked_s, reading)


class _Reading(asyncio.Protocol):
    """Collects the server-sent events of one response with the time at which each was complete."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self.events: list[tuple[float, bytes]] = []
        self.rest = b""
        self.parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_exception(Refused(f"the server closed the connection before the answer's end ({exc})"))

    def on_body(self, body: bytes) -> None:
        now_s = time.perf_counter()
        *complete, self.rest = (self.rest + body).split(b"\n\n")
        self.events.extend((now_s, event) for event in complete)

    def on_message_complete(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _answer(asked_s: float, reading: _Reading) -> Answer:
    status = reading.parser.get_status_code()
    if status != 200:
        raise Refused(f"the server answered {status}: {reading.rest.decode(errors='replace')}")
    if not reading.events or reading.events[-1][1] != b"data: [DONE]":
        raise Refused(f"the stream did not end in [DONE]: {reading.events[-1:]}")
    times_s: list[float] = []
    text: list[str] = []
    scored: list[dict[str, Any]] = []
    finish_reason = ""
    usage: dict[str, Any] = {"prompt_tokens": 0, "completion_tokens": 0}
    for time_s, event in reading.events[:-1]:
        chunk = json.loads(event.removeprefix(b"data: "))
        if "error" in chunk:
            raise Refused(f"an error came within the stream: {chunk['error']}")
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            finish_reason = choice.get("finish_reason") or finish_reason
            scored += (choice.get("logprobs") or {}).get("content", ())
            if piece:
                times_s.append(time_s)
                text.append(cast(str, piece))
    if not times_s:
        raise Refused("an answer has no text")
    return Answer(
        asked_s=asked_s,
        chunk_times_s=tuple(times_s),
        done_s=reading.events[-1][0],
        text="".join(text),
        finish_reason=finish_reason,
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        tokens=tuple(one["token"] for one in scored),
        logprobs=tuple(one["logprob"] for one in scored),
        leads=tuple(_lead(one.get("top_logprobs") or ()) for one in scored),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
    )


def _lead(alternatives: Sequence[dict[str, Any]]) -> float:
    """By how much the best of two alternatives leads, in logprobs; without two, nothing is known to be near."""
    if len(alternatives) < 2:
        return math.inf
    best, second, *_ = sorted((one["logprob"] for one in alternatives), reverse=True)
    return float(best - second)
