"""What a client gets: the official OpenAI client, streaming and not, over a real router and a scripted worker."""

import asyncio
import itertools
import json
from typing import Any

import openai
import pytest

from segue.batch.sampling import SamplingDefaults, SamplingParams
from segue.wire import GenerateSpec
from tests.router.served import ANSWER, END, answer, served, tokenizer
from tests.support.fake_worker import FakeWorker

QUESTION: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "How many?"}]


async def test_a_chat_completion_carries_text_reason_usage_seed_and_fingerprint() -> None:
    async with FakeWorker(answer, cached_tokens=2) as worker, served(worker) as router:
        got = await router.openai.chat.completions.create(model="fake", messages=QUESTION, seed=7)
        assert got.choices[0].message.content == ANSWER
        assert got.choices[0].message.role == "assistant"
        assert got.choices[0].finish_reason == "stop"
        assert got.usage is not None
        prompt = tokenizer().apply_chat_template([dict(QUESTION[0])])
        assert tuple(worker.specs[0].prompt) == tuple(prompt)
        assert got.usage.prompt_tokens == len(prompt)
        assert got.usage.completion_tokens == len(answer(worker.specs[0]))
        assert got.usage.prompt_tokens_details is not None
        assert got.usage.prompt_tokens_details.cached_tokens == 2
        assert got.system_fingerprint == "fp_ffffffffffff"
        assert got.model_extra == {"seed": 7}
        await router.until_idle()


async def test_a_streamed_chat_adds_up_to_the_whole_answer() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        stream = await router.openai.chat.completions.create(
            model="fake", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == ANSWER
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(answer(worker.specs[0]))
        assert all(chunk.usage is None for chunk in chunks[:-1])
        await router.until_idle()


async def test_the_synchronous_client_is_served_too() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:

        def ask() -> tuple[str | None, str]:
            with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
                whole = client.chat.completions.create(model="fake", messages=QUESTION)
                stream = client.completions.create(model="fake", prompt="x", max_tokens=64, stream=True)
                return whole.choices[0].message.content, "".join(chunk.choices[0].text for chunk in stream)

        assert await asyncio.to_thread(ask) == (ANSWER, ANSWER)


async def test_every_prompt_form_of_completions_reaches_the_worker_as_tokens() -> None:
    encode = tokenizer().encode
    forms: list[tuple[str | list[str] | list[int] | list[list[int]], list[list[int]]]] = [
        ("two pears", [encode("two pears")]),
        (["one", "two"], [encode("one"), encode("two")]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6], [7]], [[5, 6], [7]]),
        ("a long text " * 1000, [encode("a long text " * 1000)]),
    ]
    async with FakeWorker(answer, max_len=100_000) as worker, served(worker) as router:
        for prompt, expected in forms:
            worker.specs.clear()
            got = await router.openai.completions.create(model="fake", prompt=prompt, max_tokens=64)
            assert [choice.text for choice in got.choices] == [ANSWER] * len(expected)
            assert [choice.index for choice in got.choices] == list(range(len(expected)))
            assert sorted(tuple(spec.prompt) for spec in worker.specs) == sorted(tuple(tokens) for tokens in expected)
            assert len({(spec.request_id, spec.sampling.choice) for spec in worker.specs}) == len(expected)


async def test_n_choices_are_n_calls_with_one_seed_and_their_own_noise() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await router.openai.completions.create(model="fake", prompt=["a", "b"], n=3, max_tokens=5)
        assert [choice.index for choice in got.choices] == list(range(6))
        assert sorted((tuple(spec.prompt), spec.sampling.choice) for spec in worker.specs) == sorted(
            (tuple(tokenizer().encode(prompt)), choice) for prompt in "ab" for choice in range(3)
        )
        assert len({spec.sampling.seed for spec in worker.specs}) == 1
        assert {choice.finish_reason for choice in got.choices} == {"length"}
        assert got.usage is not None
        assert got.usage.completion_tokens == 6 * 5
        assert got.usage.prompt_tokens == sum(len(tokenizer().encode(prompt)) for prompt in "ab")


async def test_streamed_choices_keep_their_index() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        stream = await router.openai.chat.completions.create(model="fake", messages=QUESTION, n=3, stream=True)
        texts = ["", "", ""]
        roles = [0, 0, 0]
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles[choice.index] += choice.delta.role == "assistant"
        assert texts == [ANSWER] * 3
        assert roles == [1, 1, 1]


async def test_a_drawn_seed_comes_back_and_gives_the_same_request_again() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        first = await router.openai.completions.create(model="fake", prompt="a", max_tokens=2)
        other = await router.openai.completions.create(model="fake", prompt="a", max_tokens=2)
        drawn = [(got.model_extra or {})["seed"] for got in (first, other)]
        assert drawn[0] != drawn[1]
        await router.openai.completions.create(model="fake", prompt="a", max_tokens=2, seed=drawn[0])
        assert worker.specs[2].sampling == worker.specs[0].sampling


async def test_sampling_parameters_reach_the_worker() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        await router.openai.chat.completions.create(
            model="fake",
            messages=QUESTION,
            max_completion_tokens=9,
            temperature=0.5,
            top_p=0.9,
            presence_penalty=0.25,
            frequency_penalty=-0.5,
            logit_bias={"17": 3},
            seed=-3,
            user="somebody",
            extra_body={
                "top_k": 8,
                "min_p": 0.125,
                "repetition_penalty": 1.5,
                "min_tokens": 2,
                "ignore_eos": True,
                "stop_token_ids": [99],
                "priority": 4,
                "cache_salt": "s",
            },
        )
        spec = worker.specs[0]
        assert spec.sampling == SamplingParams(
            seed=2**63 - 3,
            temperature=0.5,
            top_p=0.9,
            top_k=8,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.25,
            frequency_penalty=-0.5,
            logit_bias=((17, 3.0),),
            max_tokens=9,
            min_tokens=2,
            ignore_eos=True,
            stop_token_ids=(99,),
        )
        assert (spec.priority, spec.cache_salt) == (4, "s")
        assert spec.deadline_s is not None


async def test_without_a_limit_a_chat_may_fill_the_context_and_a_completion_gets_openais_default() -> None:
    async with FakeWorker(answer, max_len=100) as worker, served(worker) as router:
        await router.openai.chat.completions.create(model="fake", messages=QUESTION)
        await router.openai.completions.create(model="fake", prompt="a")
        assert worker.specs[0].sampling.max_tokens == 100 - len(worker.specs[0].prompt)
        assert worker.specs[1].sampling.max_tokens == 16


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kept_in_output", [False, True])
async def test_a_stop_string_across_tokens_ends_the_output_and_tells_the_worker_what_is_kept(
    streamed: bool, kept_in_output: bool
) -> None:
    stop = "es and tw"
    before = ANSWER[: ANSWER.index(stop)]
    expected = before + stop if kept_in_output else before
    async with FakeWorker(answer, paused=True, cached_tokens=1) as worker, served(worker) as router:
        body = {
            "prompt": "a",
            "max_tokens": 64,
            "stop": ["never", stop],
            "include_stop_str_in_output": kept_in_output,
            "stream": streamed,
        } | ({"stream_options": {"include_usage": True}} if streamed else {})
        asking = asyncio.create_task(router.http.post("/v1/completions", json=body))
        await worker.until(lambda: len(worker.live) == 1)
        while not worker.finishes:
            worker.step()
            await asyncio.sleep(0)
        got = await asking
        text, usage, reason = read(got.text) if streamed else whole(got.json())
        assert text == expected
        assert reason == "stop"
        tokens = tokenizer().encode(ANSWER)
        kept = next(k for k in range(len(tokens)) if len(tokenizer().decode(tokens[:k])) >= len(expected))
        assert worker.finishes[0].kept == kept
        assert usage["completion_tokens"] == kept
        assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
        assert not worker.cancels
        await router.until_idle()


def whole(body: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
    return body["choices"][0]["text"], body["usage"], body["choices"][0]["finish_reason"]


def read(stream: str) -> tuple[str, dict[str, Any], str]:
    events = [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    return "".join(choice["text"] for choice in choices), events[-1]["usage"], choices[-1]["finish_reason"]


async def test_half_a_character_never_goes_out() -> None:
    text = "Kürbis 🍎🍐 три"

    def bytewise(spec: GenerateSpec) -> list[int]:
        return [*tokenizer().encode(text), END]

    async with FakeWorker(bytewise) as worker, served(worker) as router:
        stream = await router.openai.completions.create(model="fake", prompt="a", max_tokens=99, stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)
        assert len(bytewise(worker.specs[0])) > len(text), "the fixture must split characters"


async def test_special_tokens_are_text_only_when_asked_for() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await router.openai.completions.create(
            model="fake", prompt="a", max_tokens=99, extra_body={"skip_special_tokens": False}
        )
        assert got.choices[0].text == ANSWER + "<|end|>"


async def test_chat_logprobs_report_every_token_with_its_bytes_and_alternatives() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await router.openai.chat.completions.create(
            model="fake", messages=QUESTION, logprobs=True, top_logprobs=2
        )
        logprobs = got.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert len(logprobs.content) == len(answer(worker.specs[0]))
        assert "".join(entry.token for entry in logprobs.content) == ANSWER + "<|end|>"
        assert all(bytes(entry.bytes or []).decode() == entry.token for entry in logprobs.content)
        assert all(entry.logprob == -0.5 for entry in logprobs.content)
        assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-0.5, -1.5]
        assert worker.specs[0].sampling.logprobs == 2


@pytest.mark.parametrize("stop", [None, "pears make"])
async def test_streamed_logprobs_go_with_the_text_they_belong_to(stop: str | None) -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        stream = await router.openai.chat.completions.create(
            model="fake", messages=QUESTION, logprobs=True, stop=stop, stream=True
        )
        text, told = "", ""
        async for chunk in stream:
            choice = chunk.choices[0]
            text += choice.delta.content or ""
            if choice.logprobs is not None:
                told += "".join(entry.token for entry in choice.logprobs.content or [])
                assert not any(entry.top_logprobs for entry in choice.logprobs.content or [])
        assert told.removesuffix("<|end|>").startswith(text)
        assert text == (ANSWER if stop is None else ANSWER[: ANSWER.index(stop)])
        await router.until_idle()


async def test_completion_logprobs_have_offsets_into_the_text() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await router.openai.completions.create(model="fake", prompt="a", max_tokens=6, logprobs=1)
        logprobs = got.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert logprobs.text_offset is not None
        text = got.choices[0].text
        starts = [*logprobs.text_offset, len(text)]
        assert [text[a:b] for a, b in itertools.pairwise(starts)] == logprobs.tokens
        assert logprobs.token_logprobs == [-0.5] * 6
        assert logprobs.top_logprobs is not None
        assert all(len(top) == 1 for top in logprobs.top_logprobs)
        assert len(worker.specs) == 1


async def test_a_request_that_asks_for_no_logprobs_is_told_none_beside_one_that_does() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        create = router.openai.chat.completions.create
        both = asyncio.gather(
            create(model="fake", messages=QUESTION),
            create(model="fake", messages=QUESTION, logprobs=True),
        )
        await worker.until(lambda: len(worker.live) == 2)
        worker.step(64)
        plain, asking = await both
        assert plain.choices[0].logprobs is None
        assert asking.choices[0].logprobs is not None


async def test_the_openai_client_lists_the_model() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        assert [model.id async for model in router.openai.models.list()] == ["fake"]
        assert (await router.openai.models.retrieve("fake")).id == "fake"
        with pytest.raises(openai.NotFoundError):
            await router.openai.models.retrieve("other")


async def test_what_a_request_does_not_say_is_what_the_model_s_makers_suggest() -> None:
    defaults = SamplingDefaults(temperature=0.6, top_p=0.95, top_k=20, min_p=0.1, repetition_penalty=1.1)
    async with FakeWorker(answer, defaults=defaults) as worker, served(worker) as router:
        await router.openai.chat.completions.create(model="fake", messages=QUESTION)
        await router.openai.chat.completions.create(model="fake", messages=QUESTION, temperature=1, top_p=1)
        silent, said = worker.specs[0].sampling, worker.specs[1].sampling
        assert (silent.temperature, silent.top_p, silent.top_k) == (0.6, 0.95, 20)
        assert (silent.min_p, silent.repetition_penalty) == (0.1, 1.1)
        assert (said.temperature, said.top_p, said.top_k) == (1.0, 1.0, 20)
        await router.until_idle()
