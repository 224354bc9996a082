"""The bytes of a stream, exactly, and what the end of a broken one looks like to OpenAI's client."""

import asyncio
import re
from collections.abc import Mapping

import openai
import pytest

from segue.batch.request import FinishReason
from segue.errors import ServingError
from tests.router.served import END, answer, served
from tests.support.fake_worker import FakeWorker

HEAD = (
    r'data: \{"id":"%s-golden","object":"%s","created":\d+,"model":"fake",'
    r'"system_fingerprint":"fp_ffffffffffff","seed":5,"choices":\[%s\]%s\}' + "\n\n"
)


async def first_step(worker: FakeWorker) -> None:
    """The head of a response comes with its first token."""
    await worker.until(lambda: len(worker.live) == 1)
    worker.step()


async def stream_of(path: str, body: Mapping[str, object], events: list[int]) -> str:
    """The bytes of a stream whose worker says a token when the events of the one before it have come."""
    body = {"seed": 5, "stream": True, **body}
    async with FakeWorker(lambda spec: [17, 18, END], paused=True) as worker, served(worker) as router:
        stepping = asyncio.create_task(first_step(worker))
        async with router.http.stream("POST", path, json=body, headers={"x-request-id": "golden"}) as got:
            await stepping
            text = ""
            parts = got.aiter_text()
            for place, count in enumerate(events):
                worker.step(min(place, 1))
                while text.count("data: ") < count:
                    text += await anext(parts)
            text += "".join([part async for part in parts])
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert got.headers["cache-control"] == "no-cache"
        assert got.headers["x-request-id"] == "golden"
        return text


async def test_the_events_of_a_chat_are_these() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "stream_options": {"include_usage": True}}
    usage = r',"usage":null'
    choices = [
        r'\{"index":0,"delta":\{"role":"assistant","content":""\},"logprobs":null,"finish_reason":null\}',
        r'\{"index":0,"delta":\{"content":"[^"]+"\},"logprobs":null,"finish_reason":null\}',
        r'\{"index":0,"delta":\{"content":"[^"]+"\},"logprobs":null,"finish_reason":null\}',
        r'\{"index":0,"delta":\{\},"logprobs":null,"finish_reason":"stop"\}',
    ]
    events = "".join(HEAD % ("chatcmpl", r"chat\.completion\.chunk", choice, usage) for choice in choices)
    total = (
        r',"usage":\{"prompt_tokens":\d+,"completion_tokens":3,"total_tokens":\d+,'
        r'"prompt_tokens_details":\{"cached_tokens":0\}\}'
    )
    events += HEAD % ("chatcmpl", r"chat\.completion\.chunk", "", total)
    got = await stream_of("/v1/chat/completions", body, [2, 3, 6])
    assert re.fullmatch(events + r"data: \[DONE\]\n\n", got), got


async def test_the_events_of_a_completion_are_these() -> None:
    choices = [
        r'\{"index":0,"text":"[^"]+","logprobs":null,"finish_reason":null\}',
        r'\{"index":0,"text":"[^"]+","logprobs":null,"finish_reason":null\}',
        r'\{"index":0,"text":"","logprobs":null,"finish_reason":"stop"\}',
    ]
    events = "".join(HEAD % ("cmpl", "text_completion", choice, "") for choice in choices)
    got = await stream_of("/v1/completions", {"prompt": "x"}, [1, 2, 4])
    assert re.fullmatch(events + r"data: \[DONE\]\n\n", got), got


async def test_an_error_after_the_first_event_ends_the_stream_as_an_error_event_without_done() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        body = {"prompt": "x", "stream": True}
        stepping = asyncio.create_task(first_step(worker))
        async with router.http.stream("POST", "/v1/completions", json=body) as got:
            await stepping
            lines = got.aiter_lines()
            assert (await anext(lines)).startswith("data: {")
            assert got.status_code == 200
            worker.end(next(iter(worker.live)), FinishReason.ERROR, ServingError("the engine is on fire"))
            rest = [line async for line in lines if line]
        assert rest == [
            'data: {"error":{"message":"the engine is on fire","type":"server_error",'
            '"param":null,"code":"internal_error"}}'
        ]
        await router.until_idle()


async def test_openais_client_raises_on_an_error_event() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        creating = asyncio.create_task(
            router.openai.chat.completions.create(
                model="fake", messages=[{"role": "user", "content": "x"}], stream=True
            )
        )
        await first_step(worker)
        stream = await creating
        await anext(stream)
        worker.end(next(iter(worker.live)), FinishReason.ERROR, ServingError("the engine is on fire"))
        with pytest.raises(openai.APIError, match="on fire"):
            async for _ in stream:
                pass
