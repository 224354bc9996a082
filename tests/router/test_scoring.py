"""A prompt comes back with the logprobs of its tokens: whole, in order, once each, whatever happens to workers."""

import asyncio
import json
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from openai.types import Completion
from openai.types.completion_choice import Logprobs

from segue.batch.request import FinishReason
from segue.errors import ServingError
from segue.wire import Ended, PromptScores, Scores, StepNews, Usage
from tests.router.served import ANSWER, END, Served, answer, served, tokenizer
from tests.support.fake_worker import FakeWorker, score_of

PROMPT = "Ann has two pears. How many? 🍐"
TOKENS = tokenizer().encode(PROMPT)
TEXTS = [tokenizer().token_text(token) for token in TOKENS]
ASK: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 0}


def offsets(tokens: list[int]) -> list[int]:
    """Where each token's text starts: a token in the middle of a character starts where the character does."""
    detokenizer = tokenizer().detokenizer()
    ends = list(accumulate(len(detokenizer.push([token])) for token in tokens))
    return [0, *ends[:-1]]


def expected(score_from: int = 0, tokens: list[int] = TOKENS, alternatives: int = 2) -> dict[str, Any]:
    """The prompt's logprobs as the script of the fake worker has them."""
    scores = [score_of(tokens, at, alternatives) for at in range(score_from + 1, len(tokens))]
    word = tokenizer().token_text
    return {
        "tokens": [word(token) for token in tokens],
        "token_logprobs": [*[None] * (score_from + 1), *(logprob for logprob, _ in scores)],
        "top_logprobs": [
            *[None] * (score_from + 1),
            *({word(token): logprob for token, logprob in top} for _, top in scores),
        ],
        "text_offset": offsets(tokens),
    }


async def ask(router: Served, **changes: Any) -> Completion:  # noqa: ANN401  fields of the body
    completion: Completion = await router.openai.completions.create(model="fake", **(ASK | changes))
    return completion


def logprobs_of(completion: Completion, index: int = 0) -> dict[str, Any]:
    found: Logprobs | None = completion.choices[index].logprobs
    assert found is not None
    return found.model_dump()


async def test_a_prompt_is_scored_without_any_output() -> None:
    async with FakeWorker(answer, cached_tokens=3) as worker, served(worker) as router:
        got = await ask(router)
        assert got.choices[0].text == PROMPT
        assert got.choices[0].finish_reason == "length"
        assert logprobs_of(got) == expected()
        assert got.usage is not None
        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (len(TOKENS), 0)
        (spec,) = worker.specs
        assert (spec.score_from, spec.sampling.max_tokens, spec.sampling.logprobs) == (0, 0, 2)
        await router.until_idle()


async def test_output_follows_its_prompt_and_both_have_logprobs() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await ask(router, max_tokens=64)
        output = answer(worker.specs[0])
        assert got.choices[0].text == PROMPT + ANSWER
        assert got.choices[0].finish_reason == "stop"
        found = logprobs_of(got)
        prompt = expected()
        count = len(TOKENS)
        assert {name: values[:count] for name, values in found.items()} == prompt
        assert found["token_logprobs"][count:] == [-0.5] * len(output)
        assert found["text_offset"][count] == len(PROMPT)
        assert got.usage is not None
        assert got.usage.completion_tokens == len(output)


async def test_without_logprobs_the_prompt_is_text_alone_and_nothing_is_scored() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await ask(router, max_tokens=64, logprobs=None)
        assert got.choices[0].text == PROMPT + ANSWER
        assert got.choices[0].logprobs is None
        assert worker.specs[0].score_from is None
        silent = await ask(router, logprobs=None)
        assert (silent.choices[0].text, silent.choices[0].finish_reason) == (PROMPT, "length")
        assert len(worker.specs) == 1, "where nothing is to be computed, no worker is asked"


async def test_scores_are_wanted_from_a_position_on() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        for first in (0, 4, len(TOKENS) - 2, len(TOKENS) - 1):
            got = await ask(router, extra_body={"logprobs_from": first})
            assert logprobs_of(got) == expected(first)
            assert got.choices[0].text == PROMPT
        # Behind the last token there is none to score.
        assert [spec.score_from for spec in worker.specs] == [0, 4, len(TOKENS) - 2]


async def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await ask(router, prompt=[5])
        assert logprobs_of(got) == expected(tokens=[5])
        assert not worker.specs


async def test_several_prompts_and_choices_are_each_scored() -> None:
    other = tokenizer().encode("five plums")
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await ask(router, prompt=[TOKENS, other], n=2, logprobs=0)
        assert [choice.text for choice in got.choices] == [PROMPT, PROMPT, "five plums", "five plums"]
        assert [logprobs_of(got, index) for index in range(4)] == [
            *[expected(alternatives=0)] * 2,
            *[expected(tokens=other, alternatives=0)] * 2,
        ]
        assert len(worker.specs) == 4


async def test_half_a_character_at_the_prompts_end_is_completed_by_the_output() -> None:
    pear = tokenizer().encode("🍐")
    assert len(pear) > 1, "the fixture must split a character"

    async with FakeWorker(lambda spec: [*pear[-1:], END]) as worker, served(worker) as router:
        got = await ask(router, prompt=pear[:-1], max_tokens=8)
        assert got.choices[0].text == "🍐"
        assert logprobs_of(got)["text_offset"][: len(pear)] == [0] * len(pear)


async def test_stop_strings_are_looked_for_behind_the_prompt() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        got = await ask(router, max_tokens=64, stop=["pears"])
        assert got.choices[0].text == PROMPT + ANSWER[: ANSWER.index("pears")]
        assert got.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("max_tokens", [0, 64])
async def test_a_stream_adds_up_to_the_whole(max_tokens: int) -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        whole = await ask(router, max_tokens=max_tokens)
        stream = await router.openai.completions.create(
            model="fake", stream=True, stream_options={"include_usage": True}, **(ASK | {"max_tokens": max_tokens})
        )
        text, reason = "", None
        found: dict[str, list[Any]] = {name: [] for name in logprobs_of(whole)}
        pieces = 0
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.text
                reason = choice.finish_reason or reason
                if choice.logprobs is not None:
                    pieces += 1
                    for name, values in choice.logprobs.model_dump().items():
                        found[name] += values
        assert text == whole.choices[0].text
        assert reason == whole.choices[0].finish_reason
        assert found == logprobs_of(whole)
        assert pieces > 1


async def begun(worker: FakeWorker, router: Served, steps: int, **changes: Any) -> "asyncio.Task[Completion]":  # noqa: ANN401
    """A request of which so many steps were told."""
    asking = asyncio.create_task(ask(router, **changes))
    await worker.until(lambda: len(worker.live) == 1)
    worker.step(steps)
    return asking


async def test_after_a_broken_stream_scores_go_on_where_they_were() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = await begun(worker, router, 2)
        worker.break_stream()
        worker.step(2)
        await worker.until(lambda: len(worker.attaches) == 2)
        assert 1 <= worker.attaches[1].resume[0].next_position <= 1 + 2 * worker.scores_each
        worker.step(64)
        assert logprobs_of(await asking) == expected()
        assert len(worker.specs) == 1
        await router.until_idle()


@pytest.mark.parametrize("max_tokens", [0, 64])
@pytest.mark.parametrize("steps", [0, 2, 64])
async def test_a_lost_worker_is_continued_without_a_score_twice_or_none(steps: int, max_tokens: int) -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = await begun(worker, router, min(steps, 14), max_tokens=max_tokens)
        worker.live.clear()
        worker.break_stream()
        while not asking.done():
            if worker.live:
                worker.step(1)
            await asyncio.sleep(0)
        got = await asking
        assert got.choices[0].text == PROMPT + (ANSWER if max_tokens else "")
        found = logprobs_of(got)
        assert {name: values[: len(TOKENS)] for name, values in found.items()} == expected()
        over = steps == 64 and max_tokens == 0
        assert len(worker.specs) == (1 if over else 2)
        if not over:
            first, second = worker.specs
            assert second.score_from is None or not second.emitted, "tokens come when all scores have come"
            assert second == replace(
                first,
                attempt=1,
                deadline_s=second.deadline_s,
                score_from=second.score_from,
                emitted=second.emitted,
            )
        await router.until_idle()


async def test_the_end_of_a_scored_prompt_is_known_when_its_word_is_lost() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = await begun(worker, router, 0)
        ((handle, choice),) = worker.live.items()
        told = [score_of(TOKENS, at, 2) for at in range(1, len(TOKENS))]
        scores = Scores(1, [logprob for logprob, _ in told], [top for _, top in told])
        worker.say(StepNews(1, scores=[PromptScores(handle, choice.spec.attempt, scores)]))
        worker.live.clear()
        worker.break_stream()
        assert logprobs_of(await asking) == expected()
        assert len(worker.specs) == 1


def score(first: int, count: int) -> Scores:
    told = [score_of(TOKENS, at, 2) for at in range(first, first + count)]
    return Scores(first, [logprob for logprob, _ in told], [top for _, top in told])


BAD: dict[str, tuple[list[Scores], list[int]]] = {
    "a gap": ([score(1, 2), score(4, 2)], []),
    "too many": ([score(1, len(TOKENS) - 1), Scores(len(TOKENS), [-1.0], [()])], []),
    "a token too early": ([score(1, 2)], [9]),
}


@pytest.mark.parametrize("case", BAD)
async def test_scores_that_make_no_sense_end_the_request_and_tell_the_worker(case: str) -> None:
    told, tokens = BAD[case]
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = asyncio.create_task(router.http.post("/v1/completions", json=ASK | {"max_tokens": 4}))
        await worker.until(lambda: len(worker.live) == 1)
        ((handle, choice),) = worker.live.items()
        attempt = choice.spec.attempt
        scores = [PromptScores(handle, attempt, each) for each in told]
        count = len(tokens)
        worker.say(
            StepNews(1, [handle] * count, [attempt] * count, range(count), tokens, [-1.0] * count, (), (), scores)
        )
        got = await asking
        assert got.status_code == 500
        await worker.until(lambda: bool(worker.cancels))
        await router.until_idle()


async def test_an_end_without_all_scores_is_no_end() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        await worker.until(lambda: len(worker.live) == 1)
        ((handle, choice),) = worker.live.items()
        attempt = choice.spec.attempt
        ended = Ended(handle, attempt, FinishReason.LENGTH, Usage(len(TOKENS), 0))
        worker.say(StepNews(1, ended=[ended], scores=[PromptScores(handle, attempt, score(1, 2))]))
        got = await asking
        assert got.status_code == 500
        assert "score of position 3" in json.loads(got.content)["error"]["message"]


async def test_scores_of_another_attempt_or_told_twice_change_nothing() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = asyncio.create_task(
            router.openai.completions.create(model="fake", stream=True, **ASK),
        )
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(1)
        stream = await asking
        found = list((await anext(stream)).choices[0].logprobs.token_logprobs)
        ((handle, choice),) = worker.live.items()
        attempt, wrong = choice.spec.attempt, Scores(4, [-9.0], [((1, -9.0), (2, -9.5))])
        told = [(attempt + 1, wrong), (attempt, score(2, 4)), (attempt, wrong), (attempt, score(4, 4))]
        worker.say(StepNews(1, scores=[PromptScores(handle, each, scores) for each, scores in told]))
        choice.scored = choice.scores_told = 8
        worker.step(64)
        async for chunk in stream:
            if (logprobs := chunk.choices[0].logprobs) is not None:
                found += logprobs.token_logprobs
        assert found == expected()["token_logprobs"]


async def test_scores_that_come_before_the_acceptance_are_kept() -> None:
    async with FakeWorker(answer) as worker, served(worker) as router:
        worker.early_tokens = 2
        assert logprobs_of(await ask(router)) == expected()


async def test_a_worker_that_fails_while_it_scores_is_an_error() -> None:
    async with FakeWorker(answer, paused=True) as worker, served(worker) as router:
        asking = asyncio.create_task(router.http.post("/v1/completions", json=ASK))
        await worker.until(lambda: len(worker.live) == 1)
        worker.step(1)
        (handle,) = worker.live
        worker.end(handle, FinishReason.ERROR, ServingError("no logits"))
        assert (await asking).status_code == 500


async def test_a_decode_worker_scores_without_any_prefill_worker() -> None:
    async with FakeWorker(answer, role="decode") as worker, served(worker) as router:
        assert (
            logprobs_of(await ask(router, max_tokens=4))["token_logprobs"][: len(TOKENS)]
            == (expected()["token_logprobs"])
        )
        assert worker.specs[0].prefill_address == ""
        plain = await router.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 4})
        assert plain.status_code == 503
