"""What is refused is refused in OpenAI's shape, with the right status, and names what is wrong."""

import asyncio
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import openai
import orjson
import pytest
from pydantic import BaseModel

from router.config import RouterConfig
from router.openai.bodies import ChatBody, CompletionBody, DetokenizeBody, parse_body
from segue.errors import ConfigError, ContextTooLong, DuplicateRequest, InvalidRequest, ServingError
from tests.router.served import QUICK, answer, served
from tests.support.fake_worker import FakeWorker

CHAT = {"messages": [{"role": "user", "content": "x"}]}
TEXT = {"prompt": "x"}


def error_of(got: httpx.Response, status: int) -> dict[str, Any]:
    assert got.status_code == status, got.text
    body = got.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


WRONG: list[tuple[str, dict[str, object], str]] = [
    ("chat/completions", {"tools": [{"type": "function"}]}, "tools"),
    ("chat/completions", {"functions": [{}]}, "functions"),
    ("chat/completions", {"tool_choice": "auto"}, "tool_choice"),
    ("chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
    ("chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
    ("chat/completions", {"audio": {"voice": "x"}}, "audio"),
    ("chat/completions", {"add_generation_prompt": False}, "add_generation_prompt"),
    ("chat/completions", {"temprature": 1}, "temprature"),
    ("chat/completions", {"temperature": "hot"}, "temperature"),
    ("chat/completions", {"temperature": -1}, "temperature"),
    ("chat/completions", {"top_p": 0}, "top_p"),
    ("chat/completions", {"min_p": 1.5}, "min_p"),
    ("chat/completions", {"n": 0}, "n"),
    ("chat/completions", {"n": 129}, "n"),
    ("chat/completions", {"seed": 1.5}, "seed"),
    ("chat/completions", {"messages": []}, "messages"),
    ("chat/completions", {"messages": "x"}, "messages"),
    ("chat/completions", {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    (
        "chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
        "messages[0].content[0]",
    ),
    ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
    ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "logprobs"),
    ("chat/completions", {"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
    ("chat/completions", {"stop": ["x"] * 17}, "stop"),
    ("chat/completions", {"stop": [""]}, "stop"),
    ("chat/completions", {"logit_bias": {"2048": 1}}, "logit_bias"),
    ("chat/completions", {"logit_bias": {"x": 1}}, "logit_bias"),
    ("chat/completions", {"logit_bias": {"1": 101}}, "logit_bias"),
    ("chat/completions", {"stop_token_ids": [2048]}, "stop_token_ids"),
    ("completions", {"prompt": ""}, "prompt"),
    ("completions", {"prompt": []}, "prompt"),
    ("completions", {"prompt": [[]]}, "prompt"),
    ("completions", {"prompt": [2048]}, "prompt"),
    ("completions", {"prompt": [-1]}, "prompt"),
    ("completions", {"prompt": None}, "prompt"),
    ("completions", {"prompt": ["x"] * 129}, "prompt"),
    ("chat/completions", {"echo": True}, "echo"),
    ("chat/completions", {"max_tokens": 0}, "max_tokens"),
    ("chat/completions", {"max_completion_tokens": 0}, "max_tokens"),
    ("completions", {"echo": "loud"}, "echo"),
    ("completions", {"echo": True, "max_tokens": -1}, "max_tokens"),
    ("completions", {"echo": True, "max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ("completions", {"echo": True, "logprobs_from": 0}, "logprobs_from"),
    ("completions", {"logprobs": 1, "logprobs_from": 0}, "logprobs_from"),
    ("completions", {"echo": True, "logprobs": 1, "logprobs_from": -1}, "logprobs_from"),
    ("completions", {"echo": True, "logprobs": 1, "logprobs_from": 1}, "logprobs_from"),
    ("completions", {"echo": True, "logprobs": 1, "logprobs_from": 2, "prompt": [[5, 6, 7], [5, 6]]}, "logprobs_from"),
    ("completions", {"suffix": "x"}, "suffix"),
    ("completions", {"best_of": 2}, "best_of"),
    ("completions", {"max_tokens": 0}, "max_tokens"),
    ("completions", {"min_tokens": 17}, "min_tokens"),
    ("completions", {"logprobs": 21}, "logprobs"),
]


async def test_every_wrong_field_is_a_400_that_names_it_also_for_a_stream() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        for path, wrong, param in WRONG:
            for stream in (False, True):
                body = {**(CHAT if path.startswith("chat") else TEXT), **wrong, "stream": stream}
                error = error_of(await router.http.post(f"/v1/{path}", json=body), 400)
                assert error["param"] == param, wrong
                assert error["type"] == "invalid_request_error"
        assert not worker.specs
        await router.until_idle()


async def test_fields_of_openais_that_change_nothing_are_accepted() -> None:
    harmless: dict[str, object] = {
        "user": "u",
        "metadata": {"a": "b"},
        "store": False,
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "reasoning_effort": "low",
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "audio": None,
        "best_of": 1,
        "n": 1,
        "echo": False,
    }
    async with FakeWorker(answer) as worker, served(worker) as router:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            got = await router.http.post(path, json={**body, **harmless})
            assert got.status_code == 200, got.text


async def test_a_prompt_that_does_not_fit_is_refused_with_both_numbers() -> None:
    async with FakeWorker(answer, max_len=10) as worker, served(worker) as router:
        error = error_of(await router.http.post("/v1/completions", json={"prompt": [5] * 8, "max_tokens": 3}), 400)
        assert error["code"] == "context_length_exceeded"
        assert "8 tokens" in error["message"]
        assert "10" in error["message"]
        error = error_of(
            await router.http.post(
                "/v1/chat/completions",
                json={"messages": [{"role": "user", "content": "a long question that does not fit in ten tokens"}]},
            ),
            400,
        )
        assert error["code"] == "context_length_exceeded"
        got = await router.http.post("/v1/completions", json={"prompt": [5] * 8, "max_tokens": 2})
        assert got.status_code == 200


async def test_another_model_is_a_404_that_says_what_is_served() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        with pytest.raises(openai.NotFoundError, match="fake"):
            await router.openai.completions.create(model="other", prompt="x")


async def test_wrong_paths_and_methods_are_answered_in_the_same_shape() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        for method, path, status, code in (
            ("GET", "/v1/nothing", 404, "not_found"),
            ("GET", "/", 404, "not_found"),
            ("GET", "/v1/completions", 405, "method_not_allowed"),
            ("DELETE", "/v1/models", 405, "method_not_allowed"),
            ("POST", "/v1/completions/", 404, "not_found"),
        ):
            assert error_of(await router.http.request(method, path), status)["code"] == code


async def test_what_is_no_http_is_a_400_in_the_same_shape() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        target = httpx.URL(router.url)
        for raw in (b"\x16\x03\x01\x02\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n"):
            reader, writer = await asyncio.open_connection(target.host, target.port)
            writer.write(raw)
            head, _, body = (await asyncio.wait_for(reader.read(), 10.0)).partition(b"\r\n\r\n")
            writer.close()
            assert head.startswith(b"HTTP/1.1 400 ")
            assert set(orjson.loads(body)["error"]) == {"message", "type", "param", "code"}


async def test_what_is_no_json_object_is_a_400() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        for raw in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000):
            error_of(await router.http.post("/v1/completions", content=raw), 400)


async def test_a_body_beyond_the_limit_is_a_413_with_and_without_a_declared_length() -> None:
    async with FakeWorker(answer) as worker, served(worker, config=replace(QUICK, body_bytes_max=1000)) as router:
        error_of(await router.http.post("/v1/completions", json={"prompt": "x" * 2000}), 413)

        async def parts() -> Any:  # noqa: ANN401  httpx wants any iterator of bytes
            for _ in range(50):
                yield b"x" * 100

        error_of(await router.http.post("/v1/completions", content=parts()), 413)
        assert (await router.http.post("/v1/completions", json=TEXT)).status_code == 200


async def test_without_the_key_only_probes_answer() -> None:
    async with FakeWorker(answer) as worker, served(worker, config=replace(QUICK, api_key="s3cret")) as router:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "s3cret"}):
            for path in ("/v1/completions", "/tokenize"):
                got = await router.http.post(path, json=TEXT, headers=headers)
                assert error_of(got, 401)["code"] == "invalid_api_key"
                assert got.headers["x-request-id"]
        for path in ("/health", "/readiness", "/liveness", "/metrics", "/version"):
            assert (await router.http.get(path)).status_code == 200
        assert (await router.openai.completions.create(model="fake", prompt="x")).choices


async def test_request_ids_are_checked_echoed_and_never_shared_inside() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        got = await router.http.post("/v1/completions", json=TEXT, headers={"x-request-id": "two words"})
        assert error_of(got, 400)["param"] == "x-request-id"
        assert len(got.headers["x-request-id"]) == 32
        both = asyncio.gather(
            *(router.http.post("/v1/completions", json=TEXT, headers={"x-request-id": "same"}) for _ in range(2))
        )
        await worker.until(lambda: len(worker.live) == 2)
        worker.step(16)
        for got in await both:
            assert got.headers["x-request-id"] == "same"
            assert got.json()["id"] == "cmpl-same"
        names = sorted(spec.request_id for spec in worker.specs)
        assert names[0] == "same"
        assert names[1].startswith("same~")
        worker.paused = False
        assert len((await router.http.get("/version")).headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (InvalidRequest("no", param="p"), 400),
        (ContextTooLong("too long"), 400),
        (DuplicateRequest("twice"), 409),
    ],
)
async def test_a_workers_refusal_that_is_the_clients_fault_is_passed_on_as_it_is(
    refusal: ServingError, status: int
) -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        worker.refusals = [refusal]
        error = error_of(await router.http.post("/v1/completions", json=TEXT), status)
        assert (error["message"], error["code"], error["param"]) == (refusal.message, refusal.kind.code, refusal.param)
        assert len(worker.specs) == 1, "it was tried again"
        assert (await router.http.post("/v1/completions", json=TEXT)).status_code == 200


def test_a_configuration_that_makes_no_sense_is_refused_by_name() -> None:
    wrongs: list[dict[str, Any]] = [
        {"placement": "best"},
        {"inflight_max": 0},
        {"queue_timeout_s": 0.0},
        {"drain_s": -1.0},
        {"choices_max": 9, "inflight_max": 8},
        {"heartbeat_s": 5.0, "heartbeat_timeout_s": 5.0},
    ]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            replace(RouterConfig(), **wrong)


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (CompletionBody, {"prompt": [None] * 100_000}),
        (CompletionBody, {"prompt": [[None]] * 100_000}),
        (CompletionBody, {"prompt": "x", "stop": [None] * 100_000}),
        (CompletionBody, {"prompt": "x", "stop_token_ids": [None] * 100_000}),
        (CompletionBody, {"prompt": "x", "logit_bias": {str(place): None for place in range(100_000)}}),
        (ChatBody, {"messages": [None] * 100_000}),
        (ChatBody, {"messages": [], **{f"x{place}": 1 for place in range(100_000)}}),
        (DetokenizeBody, {"tokens": [None] * 100_000}),
    ],
)
def test_a_body_that_is_wrong_all_over_is_refused_at_its_first_mistake(
    cls: type[BaseModel], fields: dict[str, object]
) -> None:
    raw = orjson.dumps(fields)

    def refused() -> None:
        with pytest.raises(InvalidRequest):
            parse_body(cls, raw)

    assert peak_bytes(refused) < 1.5 * peak_bytes(lambda: orjson.loads(raw))


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("path", "param"), [("chat/completions", "messages"), ("completions", "prompt")])
async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(path: str, param: str) -> None:
    text = "x" * 100_000
    body = {"messages": [{"role": "user", "content": text}]} if param == "messages" else {"prompt": text}
    async with FakeWorker(answer, max_len=512) as worker, served(worker) as router:
        got = await router.http.post(f"/v1/{path}", json={**body, "stream": True})
        error = error_of(got, 400)
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        assert "tokens or more" in error["message"]
        assert "context length of 512" in error["message"]
        # Whoever only wants to count is not refused.
        counted = await router.http.post("/tokenize", json={"prompt": text})
        assert counted.json()["count"] > 512
        assert worker.specs == []
