"""The measuring client reads streams as they come, and takes nothing but a whole answer for an answer."""

import json
import math
from collections.abc import Sequence

import pytest

from benchmarks.refusal import Refused
from benchmarks.streaming import Answer, ask
from tests.benchmarks.canned_server import END, HEAD, canned_server, chunk

DONE = b"data: [DONE]\n\n"


def event(content: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def delta(content: str | None, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish_reason}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
USAGE = event(
    {
        "choices": [],
        "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens": 2},
    }
)
WHOLE = [ROLE, delta("Hel"), delta("lo"), delta(None, "stop"), USAGE, DONE]


async def answer_of(pieces: Sequence[bytes]) -> Answer:
    async with canned_server(pieces) as url:
        return await ask(url, "/v1/chat/completions", {"messages": []})


async def test_an_answer_is_read_with_its_usage_and_reason() -> None:
    answer = await answer_of([HEAD, *(chunk(piece) for piece in WHOLE), END])
    assert answer.text == "Hello"
    assert answer.finish_reason == "stop"
    assert (answer.prompt_tokens, answer.cached_tokens, answer.output_tokens) == (7, 4, 2)


async def test_only_chunks_with_text_have_a_time() -> None:
    answer = await answer_of([HEAD, *(chunk(piece) for piece in WHOLE), END])
    assert len(answer.chunk_times_s) == 2
    assert len(answer.gaps_s) == 1
    assert answer.asked_s <= answer.chunk_times_s[0] <= answer.chunk_times_s[1] <= answer.done_s


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 64])
async def test_events_may_be_cut_anywhere(size: int) -> None:
    body = b"".join(WHOLE)
    chunks = [chunk(body[start : start + size]) for start in range(0, len(body), size)]
    answer = await answer_of([HEAD, *chunks, END])
    assert answer.text == "Hello"


async def test_the_logprobs_of_a_chat_are_those_of_its_tokens() -> None:
    def scored(content: str, *logprobs: float) -> bytes:
        tokens = [{"token": "x", "logprob": value} for value in logprobs]
        return event({"choices": [{"index": 0, "delta": {"content": content}, "logprobs": {"content": tokens}}]})

    pieces = [scored("He", -0.25, -1.5), delta("l"), scored("lo", -3e-7), USAGE, DONE]
    answer = await answer_of([HEAD, *(chunk(piece) for piece in pieces), END])
    assert answer.logprobs == (-0.25, -1.5, -3e-7)
    assert answer.tokens == ("x", "x", "x")


async def test_how_near_the_second_best_token_was_is_known_where_two_were_asked_for() -> None:
    def scored(*logprobs: float) -> bytes:
        top = [{"token": "y", "logprob": value} for value in logprobs]
        tokens = [{"token": "x", "logprob": logprobs[0], "top_logprobs": top}]
        return event({"choices": [{"index": 0, "delta": {"content": "He"}, "logprobs": {"content": tokens}}]})

    answer = await answer_of([HEAD, *(chunk(piece) for piece in (scored(-0.5, -0.75), scored(-1.0), USAGE, DONE)), END])
    assert answer.leads == (0.25, math.inf)


async def test_a_completion_has_text_where_a_chat_has_deltas() -> None:
    pieces = [event({"choices": [{"index": 0, "text": "four"}]}), USAGE, DONE]
    answer = await answer_of([HEAD, *(chunk(piece) for piece in pieces), END])
    assert answer.text == "four"


async def test_an_error_status_is_refused_with_its_text() -> None:
    body = b'{"error": {"message": "the queue is full"}}'
    head = f"HTTP/1.1 429 Too Many Requests\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with pytest.raises(Refused, match=r"429.*the queue is full"):
        await answer_of([head + body])


async def test_an_error_within_the_stream_is_refused() -> None:
    pieces = [delta("Hel"), event({"error": {"message": "the worker is gone"}}), DONE]
    with pytest.raises(Refused, match="the worker is gone"):
        await answer_of([HEAD, *(chunk(piece) for piece in pieces), END])


async def test_a_stream_without_its_last_event_is_refused() -> None:
    with pytest.raises(Refused, match="DONE"):
        await answer_of([HEAD, *(chunk(piece) for piece in WHOLE[:-1]), END])


async def test_a_connection_that_closes_early_is_refused() -> None:
    with pytest.raises(Refused, match="closed the connection"):
        await answer_of([HEAD, chunk(delta("Hel"))])


async def test_an_answer_without_text_is_refused() -> None:
    with pytest.raises(Refused, match="no text"):
        await answer_of([HEAD, *(chunk(piece) for piece in [ROLE, USAGE, DONE]), END])
