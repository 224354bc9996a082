"""Prompts are scored where their output comes from; from outside, reuse and recomputation differ by nothing."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import segue.zoo
from decode_service.host import Host
from segue.batch.sampling import SamplingParams
from segue.wire import GenerateSpec
from tests.decode_service.router_end import spec
from tests.handoff.pair import QUICK, Pair, engine_config, loading, paired
from tests.router.served import Served, served, tokenizer
from tests.support.checkpoints import VOCAB

MODEL = Path(segue.zoo.__file__).parent / "model"
PROMPT = "Tom has 5 apples and buys 8 more. He gives 3 of them to Ann, who has 2 pears. How many has each? " * 4


def asking(name: str, *, salt: str = "", score_from: int = 0, output: int = 4) -> GenerateSpec:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=output, logprobs=2, ignore_eos=True)
    prompt = tuple(2 + (7 * i + i * i) % (VOCAB - 2) for i in range(200))
    return replace(spec(name), prompt=prompt, sampling=sampling, score_from=score_from, cache_salt=salt)


async def scored(pair: Pair, asked: GenerateSpec) -> tuple[dict[int, Any], int]:
    """Scores by position, and how many tokens were reused; asked with the prefill worker's address."""
    handle = await pair.begin(asked)
    await pair.end(handle)
    return pair.stream.scores[handle], pair.stream.ended[handle].usage.cached_tokens


async def test_a_decode_worker_scores_by_itself_and_reuses_what_came_from_a_prefill_worker(hybrid: Path) -> None:
    async with paired(hybrid, extend_tokens=0) as pair:
        computed, depth = await scored(pair, asking("a", salt="another"))
        assert (len(computed), depth) == (199, 0)
        assert (await pair.prefill.worker.status()).prefill_tokens == 0
        await pair.ask([replace(asking("b"), score_from=None)])
        await pair.emptied()
        reused, depth = await scored(pair, asking("c", score_from=192))
        assert depth == 192
        assert reused == {position: score for position, score in computed.items() if position > 192}
        assert (await pair.decode.worker.status()).transfers.count == 1
        await pair.emptied()


async def test_a_decode_worker_scores_and_puts_out_what_a_handed_over_prompt_does(hybrid: Path) -> None:
    async with paired(hybrid, extend_tokens=0) as pair:
        (plain,) = await pair.ask([replace(asking("a", salt="one"), score_from=None)])
        (mixed,) = await pair.ask([asking("b", salt="two")])
        assert mixed == plain


@asynccontextmanager
async def serving(**changes: object) -> AsyncIterator[Served]:
    """The bundled model behind a router."""
    host = Host(QUICK)
    settings: dict[str, object] = {"state_bytes": 64 << 20, "page_tokens": 16, "step_tokens": 256, "chunk_tokens": 96}
    await host.start(loading(engine_config(MODEL, "both", **(settings | changes))))
    try:
        async with served(host.address) as router:
            yield router
    finally:
        await host.worker.drain(0.1)
        await host.stop()


async def score(router: Served, **changes: Any) -> tuple[dict[str, Any], int]:  # noqa: ANN401  fields of the body
    """The prompt's logprobs, and how many of its tokens were reused."""
    body: dict[str, Any] = {"prompt": PROMPT, "echo": True, "logprobs": 20, "max_tokens": 0} | changes
    got = await router.openai.completions.create(model="small", timeout=120, **body)
    assert got.choices[0].text == PROMPT
    assert got.usage is not None
    assert got.usage.completion_tokens == 0
    assert got.usage.prompt_tokens_details is not None
    found: dict[str, Any] = got.choices[0].logprobs.model_dump()
    return found, got.usage.prompt_tokens_details.cached_tokens or 0


def divergence(one: dict[str, float], other: dict[str, float]) -> float:
    """What the alternatives contribute to KL(one || other)."""
    return sum(math.exp(logprob) * (logprob - other[token]) for token, logprob in one.items())


async def test_the_divergence_between_reuse_and_recomputation_is_measured_from_outside_and_is_zero() -> None:
    async with serving() as router:
        whole, depth = await score(router)
        assert depth == 0
        count = len(tokenizer().encode(PROMPT))
        assert "".join(whole["tokens"]) == PROMPT
        assert whole["token_logprobs"][0] is None
        assert whole["top_logprobs"][0] is None
        assert all(value <= 0 for value in whole["token_logprobs"][1:])
        first = (count - 1) // 64 * 64
        extra = {"logprobs_from": first}
        reused, depth = await score(router, extra_body=extra)
        assert depth == first
        again, depth = await score(router, extra_body=extra | {"cache_salt": "another"})
        assert depth == 0
        assert reused == again
        assert reused["token_logprobs"][: first + 1] == [None] * (first + 1)
        assert reused["token_logprobs"][first + 1 :] == whole["token_logprobs"][first + 1 :]
        pairs = zip(reused["top_logprobs"][first + 1 :], whole["top_logprobs"][first + 1 :], strict=True)
        assert [divergence(one, other) for one, other in pairs] == [0.0] * (count - first - 1)
    async with serving(prefix_cache=False, chunk_tokens=37) as fresh:
        computed, _ = await score(fresh)
    assert computed == whole


async def test_the_models_own_greedy_output_scores_as_it_was_put_out() -> None:
    async with serving() as router:
        body: dict[str, Any] = {"model": "small", "prompt": PROMPT, "temperature": 0, "logprobs": 1}
        body["extra_body"] = {"ignore_eos": True}
        got = await router.openai.completions.create(max_tokens=20, echo=True, **body)
        both = got.choices[0].logprobs
        assert both is not None
        prompt = tokenizer().encode(PROMPT)
        id_of = {tokenizer().token_text(token): token for token in range(tokenizer().vocab_size)}
        tokens = [*prompt, *(id_of[text] for text in both.tokens[len(prompt) :])]
        assert len(tokens) == len(prompt) + 20
        again = await router.openai.completions.create(
            model="small", prompt=tokens, echo=True, logprobs=1, max_tokens=0
        )
        assert again.choices[0].text == got.choices[0].text
        assert again.choices[0].logprobs == both
