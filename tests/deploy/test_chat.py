"""A terminal chat keeps its conversation, shows answers as they come, and survives what goes wrong."""

import io
import json
from collections.abc import Callable, Iterator

import httpx
import pytest

from deploy.chat import ChatClient, Conversation, chat
from segue.errors import ServingError, WorkerUnavailable


def event(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def piece(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


class Server:
    """Answers every question with its own words in capitals, and remembers what it was asked."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, object]] = []
        self.pieces: Callable[[str], Iterator[bytes]] = lambda text: iter([piece(text.upper())])

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "m1"}, {"id": "m2"}]})
        body = json.loads(request.content)
        self.bodies.append(body)
        stream = self._stream(body["messages"][-1]["content"])
        return httpx.Response(200, content=stream)

    def _stream(self, question: str) -> Iterator[bytes]:
        yield event({"choices": [{"index": 0, "delta": {"role": "assistant"}}]})
        yield from self.pieces(question)
        yield event({"choices": [], "usage": {}})
        yield b"data: [DONE]\n\n"


class Terminal(io.StringIO):
    """Lines that a person types."""

    def isatty(self) -> bool:
        return True


def client(server: Callable[[httpx.Request], httpx.Response]) -> ChatClient:
    return ChatClient(httpx.Client(base_url="http://server", transport=httpx.MockTransport(server)))


def talk(server: Server, source: io.StringIO) -> tuple[str, Conversation]:
    conversation, sink = Conversation(model="m1", system="be brief", temperature=0.0, max_tokens=9), io.StringIO()
    chat(client(server), conversation, source, sink)
    return sink.getvalue(), conversation


def test_every_line_is_asked_with_all_that_went_before() -> None:
    server = Server()
    said, _ = talk(server, io.StringIO("hello\n\nand now?\n"))
    assert said == "HELLO\nAND NOW?\n"
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "HELLO"},
        {"role": "user", "content": "and now?"},
    ]
    assert (server.bodies[0]["temperature"], server.bodies[0]["max_tokens"]) == (0.0, 9)


def test_reset_forgets_and_exit_leaves() -> None:
    server = Server()
    talk(server, io.StringIO("one\n/reset\ntwo\n/exit\nthree\n"))
    assert len(server.bodies) == 2
    assert server.bodies[1]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two"},
    ]


def test_ctrl_c_stops_an_answer_and_keeps_what_was_said() -> None:
    def interrupted(text: str) -> Iterator[bytes]:
        yield piece("half an")
        raise KeyboardInterrupt

    server = Server()
    server.pieces = interrupted
    said, conversation = talk(server, io.StringIO("tell me\n"))
    assert said == "half an [stopped]\n"
    assert conversation.turns[-1] == {"role": "assistant", "content": "half an"}


def test_an_error_in_the_stream_is_shown_to_a_person_who_may_go_on() -> None:
    server = Server()
    server.pieces = lambda text: iter([event({"error": {"message": "the worker is gone"}})])
    said, conversation = talk(server, Terminal("one\n"))
    assert "error: the worker is gone" in said
    assert conversation.turns == []


def test_an_error_ends_a_chat_that_nobody_watches() -> None:
    server = Server()
    server.pieces = lambda text: iter([event({"error": {"message": "the worker is gone"}})])
    with pytest.raises(ServingError, match="worker is gone"):
        talk(server, io.StringIO("one\n"))


def test_a_refusal_shows_the_servers_own_words() -> None:
    refusal = httpx.Response(404, json={"error": {"message": "no model m9", "type": "", "param": None, "code": ""}})
    with pytest.raises(ServingError, match="404: no model m9"):
        list(client(lambda _: refusal).stream({}))


def test_a_server_that_is_not_there_is_named() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(WorkerUnavailable, match="http://server"):
        client(refuse).first_model()


def test_the_first_model_that_is_served_is_the_default() -> None:
    assert client(Server()).first_model() == "m1"
