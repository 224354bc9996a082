"""Thousands of unlike requests through one small engine, many of them cut short: nothing leaks, nobody notices others.

The engine is real, model included (random weights with a long memory, all three components), in deterministic mode.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.build import BuiltEngine, load_engine
from segue.config import EngineConfig
from segue.errors import QueueFull
from segue.ids import Handle, RequestId, RouterId
from segue.tokens import EmittedToken
from segue.weights.folder import ModelFolder
from tests.support.checkpoints import VOCAB, lara_mini_config, write_checkpoint

CHECK_EVERY = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder."""
    return write_checkpoint(lara_mini_config(), tmp_path_factory.mktemp("model")).folder


def small_engine(folder: Path, *, prefix_cache: bool = True) -> BuiltEngine:
    """Room for a few requests only, so that others wait and cached prefixes go, and chunks that cut most prompts."""
    config = EngineConfig(
        model=folder,
        deterministic=True,
        threads=1,
        page_tokens=16,
        state_bytes=2 << 20,
        max_running=8,
        max_waiting=32,
        max_len=320,
        step_tokens=160,
        chunk_tokens=96,
        track_interval=64,
        prefix_cache=prefix_cache,
    )
    return load_engine(config, ModelFolder.open(folder))


def random_sampling(draw: random.Random) -> SamplingParams:
    max_tokens = draw.choice((1, 2, 5, 12, 30))
    return SamplingParams(
        seed=draw.randrange(2**40),
        choice=draw.randrange(4),
        temperature=draw.choice((0.0, 0.0, 0.7, 1.0, 1.5)),
        top_p=draw.choice((1.0, 1.0, 0.8)),
        top_k=draw.choice((0, 0, 5)),
        min_p=draw.choice((0.0, 0.0, 0.05)),
        repetition_penalty=draw.choice((1.0, 1.0, 1.2)),
        presence_penalty=draw.choice((0.0, 0.0, 0.5)),
        frequency_penalty=draw.choice((0.0, 0.0, 0.3)),
        logit_bias=draw.choice(((), (), ((5, 3.0), (6, -100.0)))),
        logprobs=draw.choice((None, None, 0, 3)),
        max_tokens=max_tokens,
        min_tokens=draw.choice((0, min(2, max_tokens))),
        ignore_eos=draw.random() < 0.5,
        stop_token_ids=draw.choice(((), (), (7, 8))),
    )


@dataclass(slots=True)
class Asked:
    """One request, when it is to be cut short, and what came of it."""

    spec: GenerateSpec
    cancel_after: int | None
    finish_after: int | None
    tokens: list[EmittedToken] = field(default_factory=list)
    reason: FinishReason | None = None

    @staticmethod
    def drawn(number: int, draw: random.Random, before: Sequence["Asked"]) -> "Asked":
        """Half of them begin like an earlier one."""
        sampling = random_sampling(draw)
        emitted_count = draw.randrange(sampling.max_tokens) if draw.random() < 0.1 else 0
        prompt = tuple(draw.randrange(2, VOCAB) for _ in range(draw.choice((1, 3, 16, 17, 40, 100, 200))))
        if before and draw.random() < 0.5:
            known = draw.choice(before).spec.prompt
            prompt = (*known[: draw.choice((len(known), 64, 130))], *prompt)[:250]
        spec = GenerateSpec(
            router_id=RouterId("r"),
            request_id=RequestId(f"q{number}"),
            attempt=1,
            prompt=prompt,
            emitted=tuple(draw.randrange(2, VOCAB) for _ in range(emitted_count)),
            sampling=sampling,
            priority=draw.choice((0, 0, 1)),
            cache_salt=draw.choice(("", "", "", "a")),
        )
        fate = draw.random()
        after = draw.randrange(8)
        return Asked(spec, after if fate < 0.15 else None, max(1, after) if 0.15 <= fate < 0.25 else None)


class Soak:
    """Feeds requests to an engine as fast as its queue takes them."""

    def __init__(self, built: BuiltEngine, asked: list[Asked]) -> None:
        self._engine = built.engine
        self._coming = list(reversed(list(enumerate(asked, 1))))
        self._live: dict[Handle, Asked] = {}

    def run(self) -> None:
        """Until everything has ended. Pools must add up all the way, and be whole at the end."""
        steps = 0
        while self._coming or self._live:
            self._submit()
            record = self._engine.launch()
            # Between the two calls, as a router's messages come: what is cut here is still in the step.
            self._cut_short()
            if record is not None:
                news = self._engine.commit(record)
                for handle, index, token in zip(news.handles, news.indices, news.tokens, strict=True):
                    asked = self._live[handle]
                    assert index == len(asked.spec.emitted) + len(asked.tokens)
                    asked.tokens.append(token)
                for ended in news.ended:
                    self._live.pop(ended.handle).reason = ended.reason
            for ended in self._engine.take_ended():
                self._live.pop(ended.handle).reason = ended.reason
            steps += 1
            if steps % CHECK_EVERY == 0:
                self._engine.check()
        self._engine.check()
        assert self._engine.idle
        assert all(pool.held == 0 for pool in self._engine.status().pools)

    def _submit(self) -> None:
        while self._coming:
            number, asked = self._coming[-1]
            try:
                self._engine.submit(asked.spec, Handle(number))
            except QueueFull:
                return
            self._coming.pop()
            self._live[Handle(number)] = asked

    def _cut_short(self) -> None:
        for handle, asked in self._live.items():
            if asked.cancel_after is not None and len(asked.tokens) >= asked.cancel_after:
                self._engine.cancel(handle, 1)
            elif asked.finish_after is not None and len(asked.tokens) >= asked.finish_after:
                self._engine.finish(handle, 1, len(asked.spec.emitted) + asked.finish_after)


def alone(built: BuiltEngine, asked: Asked) -> list[EmittedToken]:
    """The same request with the engine to itself, uncut."""
    again = Asked(asked.spec, None, None)
    Soak(built, [again]).run()
    return again.tokens


def soaked(folder: Path, count: int, seed: int) -> list[Asked]:
    draw = random.Random(seed)
    asked: list[Asked] = []
    for number in range(count):
        asked.append(Asked.drawn(number, draw, asked))
    built = small_engine(folder)
    Soak(built, asked).run()
    assert built.engine.status().prefill_tokens < sum(len(each.spec.prompt) for each in asked)
    return asked


def assert_as_alone(folder: Path, asked: list[Asked]) -> None:
    quiet = small_engine(folder, prefix_cache=False)
    for each in asked:
        expected = alone(quiet, each)
        if each.reason in (FinishReason.STOP, FinishReason.LENGTH) and each.finish_after is None:
            assert each.tokens == expected, each.spec
        else:
            assert each.tokens == expected[: len(each.tokens)], each.spec


@pytest.mark.slow
def test_a_hundred_requests_leak_nothing_and_an_output_is_as_if_alone(folder: Path) -> None:
    asked = soaked(folder, 100, seed=1)
    reasons = [each.reason for each in asked]
    assert {FinishReason.CANCELLED, FinishReason.STOP, FinishReason.LENGTH} <= set(reasons)
    assert_as_alone(folder, asked[::3])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_thousand_requests_leak_nothing_and_each_output_is_as_if_alone(folder: Path) -> None:
    assert_as_alone(folder, soaked(folder, 2000, seed=2))
