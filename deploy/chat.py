"""`segue chat`: a small terminal client of an OpenAI-compatible server; keeps a conversation, knows no model."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

import httpx

from deploy.answers import events, reaching, require_success
from segue.errors import ServingError, WorkerUnavailable

HELP = "/reset forgets the conversation, /exit (or Ctrl-D) leaves, Ctrl-C stops an answer"


@dataclass(slots=True, kw_only=True)
class Conversation:
    """Messages so far, and how answers are to be sampled."""

    model: str
    system: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    turns: list[dict[str, str]] = field(default_factory=list)

    def body(self, question: str) -> dict[str, object]:
        """The request that asks `question` next."""
        before = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, object] = {
            "model": self.model,
            "stream": True,
            "messages": [*before, *self.turns, {"role": "user", "content": question}],
        }
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        return body

    def add(self, question: str, answer: str) -> None:
        """Remembers one exchange."""
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


class ChatClient:
    """The two calls that a chat needs. They raise WorkerUnavailable when nobody answers, ServingError on refusal."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def first_model(self) -> str:
        """The id of the first model that is served."""
        with reaching(self._http):
            answer = self._http.get("/v1/models")
        require_success(answer)
        models = answer.json()["data"]
        if not models:
            raise WorkerUnavailable(f"{self._http.base_url} serves no model yet")
        return str(models[0]["id"])

    def stream(self, body: dict[str, object]) -> Iterator[str]:
        """Pieces of the answer as they come."""
        with reaching(self._http), self._http.stream("POST", "/v1/chat/completions", json=body) as answer:
            for event in events(answer):
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""


def chat(client: ChatClient, conversation: Conversation, source: TextIO, sink: TextIO) -> None:
    """Asks every line of `source`, until its end or /exit. Prompts and hints appear only on a terminal."""
    person = source.isatty()
    if person:
        print(f"{conversation.model}: {HELP}", file=sink)
    for line in _lines(source, sink):
        question = line.strip()
        if question == "/exit":
            return
        if question == "/reset":
            conversation.turns.clear()
        elif question == "/help":
            print(HELP, file=sink)
        elif question:
            try:
                conversation.add(question, _answer(client, conversation.body(question), sink))
            except ServingError as error:
                if not person:
                    raise
                print(f"error: {error.message}", file=sink)


def _answer(client: ChatClient, body: dict[str, object], sink: TextIO) -> str:
    """Prints the answer as it comes; Ctrl-C ends it (and, as the call closes, on the server too)."""
    pieces: list[str] = []
    with contextlib.closing(client.stream(body)) as stream:  # type: ignore[type-var]
        try:
            for piece in stream:
                pieces.append(piece)
                print(piece, end="", file=sink, flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="", file=sink)
    print(file=sink, flush=True)
    return "".join(pieces)


def _lines(source: TextIO, sink: TextIO) -> Iterator[str]:
    if source is sys.stdin and source.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives `input` history and editing)
        while True:
            try:
                yield input("> ")
            except EOFError:
                print(file=sink)
                return
            except KeyboardInterrupt:
                print(f"\n{HELP}", file=sink)
    yield from source
