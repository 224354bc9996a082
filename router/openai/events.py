"""Events and whole bodies of both endpoints, as bytes; the constant part of a chunk is built once per stream.

A stream ends with `data: [DONE]`. One that fails after it has begun ends with an event that holds `error`, and without
[DONE], so that a client that looks only for the terminator does not take a broken output for a whole one; OpenAI's own
clients raise on the error event.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import orjson

from router.openai.logprobs import TokenReport, chat_logprobs, completion_logprobs
from segue.batch.request import FinishReason
from segue.errors import ServingError
from segue.wire import Usage

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """What every chunk and body of one response says about itself."""

    id: str
    created: int
    model: str
    fingerprint: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One finished choice. `reports` is None when no logprobs were asked for. `snapshot_id`: what has its rest."""

    index: int
    text: str
    reports: Sequence[TokenReport] | None
    reason: FinishReason
    snapshot_id: str = ""


class Format(Protocol):
    """How one endpoint writes its chunks and its body."""

    def opening(self, index: int) -> bytes:
        """Sent before the first text of a choice."""

    def text(self, index: int, text: str, reports: Sequence[TokenReport] | None) -> bytes:
        """New text of a choice, and the tokens it came from when logprobs were asked for."""

    def closing(self, index: int, reason: FinishReason, snapshot_id: str) -> bytes:
        """The end of a choice, at which its snapshot is named if there is one."""

    def usage(self, usage: Usage) -> bytes:
        """The event after the last choice, when asked for."""

    def body(self, outcomes: Sequence[Outcome], usage: Usage) -> bytes:
        """The whole response of a request that is not streamed."""


class ChatFormat:
    """Chunks and body of /v1/chat/completions."""

    def __init__(self, heading: Heading, include_usage: bool) -> None:
        self._heading = heading
        self._head = _head(heading, "chat.completion.chunk")
        self._tail = _tail(include_usage)
        self._plain_end = b'},"logprobs":null,"finish_reason":null}]' + self._tail
        self._starts: dict[int, bytes] = {}

    def opening(self, index: int) -> bytes:
        delta = b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return self._head + b'{"index":%d,' % index + delta + self._tail

    def text(self, index: int, text: str, reports: Sequence[TokenReport] | None) -> bytes:
        start = self._starts.get(index)
        if start is None:
            start = self._starts[index] = self._head + b'{"index":%d,"delta":{"content":' % index
        if reports is None:
            return start + orjson.dumps(text) + self._plain_end
        logprobs = orjson.dumps(chat_logprobs(reports))
        return start + orjson.dumps(text) + b'},"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail

    def closing(self, index: int, reason: FinishReason, snapshot_id: str) -> bytes:
        return self._head + b'{"index":%d,"delta":{}' % index + _end(reason, snapshot_id) + self._tail

    def usage(self, usage: Usage) -> bytes:
        return _usage_event(self._head, usage)

    def body(self, outcomes: Sequence[Outcome], usage: Usage) -> bytes:
        choices = [
            {
                "index": outcome.index,
                "message": {"role": "assistant", "content": outcome.text, "refusal": None},
                "logprobs": None if outcome.reports is None else chat_logprobs(outcome.reports),
                **_why(outcome.reason, outcome.snapshot_id),
            }
            for outcome in outcomes
        ]
        return _body(self._heading, "chat.completion", choices, usage)


class CompletionFormat:
    """Chunks and body of /v1/completions."""

    def __init__(self, heading: Heading, include_usage: bool) -> None:
        self._heading = heading
        self._head = _head(heading, "text_completion")
        self._tail = _tail(include_usage)
        self._plain_end = b',"logprobs":null,"finish_reason":null}]' + self._tail
        self._starts: dict[int, bytes] = {}

    def opening(self, index: int) -> bytes:
        return b""

    def text(self, index: int, text: str, reports: Sequence[TokenReport] | None) -> bytes:
        start = self._starts.get(index)
        if start is None:
            start = self._starts[index] = self._head + b'{"index":%d,"text":' % index
        if reports is None:
            return start + orjson.dumps(text) + self._plain_end
        logprobs = orjson.dumps(completion_logprobs(reports))
        return start + orjson.dumps(text) + b',"logprobs":' + logprobs + b',"finish_reason":null}]' + self._tail

    def closing(self, index: int, reason: FinishReason, snapshot_id: str) -> bytes:
        return self._head + b'{"index":%d,"text":""' % index + _end(reason, snapshot_id) + self._tail

    def usage(self, usage: Usage) -> bytes:
        return _usage_event(self._head, usage)

    def body(self, outcomes: Sequence[Outcome], usage: Usage) -> bytes:
        choices = [
            {
                "index": outcome.index,
                "text": outcome.text,
                "logprobs": None if outcome.reports is None else completion_logprobs(outcome.reports),
                **_why(outcome.reason, outcome.snapshot_id),
            }
            for outcome in outcomes
        ]
        return _body(self._heading, "text_completion", choices, usage)


class Endpoint(StrEnum):
    """The endpoints that generate."""

    CHAT = "chat"
    COMPLETION = "completion"


def format_of(endpoint: Endpoint, heading: Heading, include_usage: bool) -> Format:
    """How `endpoint` writes one response."""
    match endpoint:
        case Endpoint.CHAT:
            return ChatFormat(heading, include_usage)
        case Endpoint.COMPLETION:
            return CompletionFormat(heading, include_usage)


def finish_word(reason: FinishReason) -> str:
    """What clients are told: only a snapshot takes a choice away from its client."""
    return "snapshot" if reason is FinishReason.MOVED else reason.value


def error_object(error: ServingError) -> dict[str, object]:
    """OpenAI's error object."""
    kind = error.kind
    return {
        "error": {"message": error.message, "type": kind.openai_type, "param": error.param, "code": kind.code},
    }


def error_event(error: ServingError) -> bytes:
    """The last event of a stream that failed after it had begun."""
    return b"data: " + orjson.dumps(error_object(error)) + b"\n\n"


def usage_object(usage: Usage) -> dict[str, object]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def _end(reason: FinishReason, snapshot_id: str) -> bytes:
    return b',"logprobs":null,' + orjson.dumps(_why(reason, snapshot_id))[1:] + b"]"


def _why(reason: FinishReason, snapshot_id: str) -> dict[str, str]:
    told = {"finish_reason": finish_word(reason)}
    return {**told, "snapshot_id": snapshot_id} if snapshot_id else told


def _fields(heading: Heading, kind: str) -> dict[str, object]:
    return {
        "id": heading.id,
        "object": kind,
        "created": heading.created,
        "model": heading.model,
        "system_fingerprint": heading.fingerprint,
        "seed": heading.seed,
    }


def _head(heading: Heading, kind: str) -> bytes:
    return b"data: " + orjson.dumps(_fields(heading, kind))[:-1] + b',"choices":['


def _tail(include_usage: bool) -> bytes:
    return b',"usage":null}\n\n' if include_usage else b"}\n\n"


def _usage_event(head: bytes, usage: Usage) -> bytes:
    return head + b'],"usage":' + orjson.dumps(usage_object(usage)) + b"}\n\n"


def _body(heading: Heading, kind: str, choices: Sequence[object], usage: Usage) -> bytes:
    return orjson.dumps({**_fields(heading, kind), "choices": choices, "usage": usage_object(usage)})
