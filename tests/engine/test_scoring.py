"""Prompts are scored to the oracle's figures in any chunks, to the same bits with and without reuse, and within bounds.

The engine and its model are real, except where only the plan matters.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.batch.news import Ended
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.batch.scores import Top
from segue.batch.submission import GenerateSpec
from segue.build import BuiltEngine, assemble, scored_tokens_max
from segue.config import EngineConfig
from segue.errors import InvalidRequest
from segue.ids import Handle, RequestId, RouterId, WorkerId
from segue.models.options import BuildOptions
from segue.runner.context import Model, StepContext
from segue.weights.generation import GenerationDefaults
from segue.weights.load import load_model
from tests.support.checkpoints import VOCAB, Checkpoint, lara_mini_config, llama_config, write_checkpoint
from tests.support.policies import rig, spec

TOLERANCE = 1e-4
TOP = 3
Score = tuple[float, Top]


def tokens(count: int, start: int = 0) -> list[int]:
    return [2 + (start + 7 * i + i * i) % (VOCAB - 2) for i in range(count)]


@pytest.fixture(scope="module", params=["hybrid", "full"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    config = lara_mini_config() if request.param == "hybrid" else llama_config()
    return write_checkpoint(config, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model of all three components."""
    return write_checkpoint(lara_mini_config(), tmp_path_factory.mktemp("hybrid"))


@dataclass
class Bench:
    """An engine that runs requests to their end and remembers what came of them."""

    built: BuiltEngine
    scores: dict[Handle, dict[int, Score]] = field(default_factory=dict)
    output: dict[Handle, list[int]] = field(default_factory=dict)
    ended: dict[Handle, Ended] = field(default_factory=dict)

    def submit(
        self,
        prompt: list[int],
        *,
        score_from: int | None = 0,
        output: int = 0,
        salt: str = "",
        emitted: tuple[int, ...] = (),
    ) -> Handle:
        handle = Handle(len(self.output) + 1)
        sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=output, ignore_eos=True, logprobs=TOP)
        asked = GenerateSpec(
            router_id=RouterId("r"),
            request_id=RequestId(f"q{handle}"),
            attempt=0,
            prompt=tuple(prompt),
            emitted=emitted,
            sampling=sampling,
            cache_salt=salt,
            score_from=score_from,
        )
        self.built.engine.submit(asked, handle)
        self.scores[handle], self.output[handle] = {}, []
        return handle

    def run(self) -> None:
        """Until nothing is left to do; scores must come in order, once each, and before the output."""
        engine = self.built.engine
        while (record := engine.launch()) is not None:
            news = engine.commit(record)
            for of in news.scores:
                told = self.scores[of.handle]
                assert not told or of.scores.first == max(told) + 1
                assert not self.output[of.handle]
                found = zip(of.scores.logprobs, of.scores.tops, strict=True)
                told.update(zip(range(of.scores.first, of.scores.stop), found, strict=True))
            for handle, token in zip(news.handles, news.tokens, strict=True):
                self.output[handle].append(token.token_id)
            self.ended |= {end.handle: end for end in (*news.ended, *engine.take_ended())}
            engine.check()

    def score(self, prompt: list[int], score_from: int = 0, *, salt: str = "") -> tuple[dict[int, Score], int]:
        """Scores by position, and how many tokens were reused."""
        handle = self.submit(prompt, score_from=score_from, salt=salt)
        self.run()
        return self.scores[handle], self.ended[handle].usage.cached_tokens


def bench(folder: Path, *, model: Model | None = None, deterministic: bool = True, **settings: object) -> Bench:
    chosen: dict[str, object] = {
        "page_tokens": 16,
        "track_interval": 64,
        "max_running": 4,
        "max_len": 1024,
        "chunk_tokens": 96,
        "state_bytes": 8 << 20,
    }
    config = EngineConfig(model=folder, deterministic=deterministic, threads=1, **(chosen | settings))  # type: ignore[arg-type]
    model = model or load_model(folder, BuildOptions(deterministic=deterministic))
    return Bench(assemble(config, model, name="small", generation=GenerationDefaults()))


def require_oracle(scores: dict[int, Score], checkpoint: Checkpoint, prompt: list[int], first: int) -> None:
    """Exactly the tokens behind `first` are scored, each as the oracle does."""
    assert sorted(scores) == list(range(first + 1, len(prompt)))
    oracle = checkpoint.logits(prompt).double().log_softmax(-1)
    for position, (logprob, top) in scores.items():
        row = oracle[position - 1]
        assert logprob == pytest.approx(float(row[prompt[position]]), abs=TOLERANCE)
        assert [value for _, value in top] == pytest.approx(row.topk(TOP).values.tolist(), abs=TOLERANCE)
        assert all(value == pytest.approx(float(row[token]), abs=TOLERANCE) for token, value in top)
        assert all(one >= other for (_, one), (_, other) in pairwise(top))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(
    ("chunk", "firsts"),
    [
        *((chunk, (0, 63, 64, 148)) for chunk in (7, 96, 512)),
        pytest.param(64, (0, 63, 64, 148), marks=pytest.mark.long),
        # A step a token is slow: once from the beginning, and once from the deepest checkpoint.
        pytest.param(1, (0, 148), marks=pytest.mark.long),
    ],
)
def test_scores_are_those_of_transformers_in_any_chunks(
    checkpoint: Checkpoint, chunk: int, firsts: tuple[int, ...], deterministic: bool
) -> None:
    engine = bench(checkpoint.folder, deterministic=deterministic, chunk_tokens=chunk)
    prompt = tokens(150)
    for first in firsts:
        scores, _ = engine.score(prompt, first)
        require_oracle(scores, checkpoint, prompt, first)


def test_scores_come_beside_other_requests_and_before_an_output(checkpoint: Checkpoint) -> None:
    engine = bench(checkpoint.folder)
    prompts = [tokens(150, start) for start in range(4)]
    plain = engine.submit(prompts[0], score_from=None, output=40)
    scored = [engine.submit(prompt, output=output) for prompt, output in zip(prompts[1:], (0, 1, 30), strict=True)]
    engine.run()
    assert engine.scores[plain] == {}
    for handle, prompt, output in zip(scored, prompts[1:], (0, 1, 30), strict=True):
        require_oracle(engine.scores[handle], checkpoint, prompt, 0)
        assert len(engine.output[handle]) == output
        assert engine.ended[handle].reason is FinishReason.LENGTH
        unscored = bench(checkpoint.folder)
        alone = unscored.submit(prompt, score_from=None, output=max(1, output))
        unscored.run()
        assert unscored.output[alone][:output] == engine.output[handle]


def test_a_reused_prefix_scores_to_the_bits_of_a_computed_one(checkpoint: Checkpoint) -> None:
    """The divergence between reuse and recomputation is zero: every logprob and every alternative is the same."""
    engine = bench(checkpoint.folder)
    prompt = tokens(250)
    engine.submit(prompt, score_from=None, output=4)
    engine.run()
    reused, depth = engine.score(prompt, 192)
    assert depth == 192
    computed, depth = engine.score(prompt, 192, salt="another")
    assert depth == 0
    assert reused == computed
    fresh, _ = bench(checkpoint.folder, prefix_cache=False, chunk_tokens=37).score(prompt)
    assert reused == {position: score for position, score in fresh.items() if position > 192}
    assert len(reused) == 250 - 193


@pytest.mark.parametrize(
    "first", [0, 63, 64, 65, 192, *(pytest.param(first, marks=pytest.mark.long) for first in (1, 127, 128, 191, 198))]
)
def test_nothing_is_reused_that_is_to_be_scored(hybrid: Checkpoint, first: int) -> None:
    engine = bench(hybrid.folder)
    prompt = tokens(200)
    engine.score(prompt)
    scores, depth = engine.score(prompt, first)
    assert depth == first // 64 * 64
    require_oracle(scores, hybrid, prompt, first)


def test_a_scored_prompt_is_cached_for_the_next(hybrid: Checkpoint) -> None:
    engine = bench(hybrid.folder)
    prompt = tokens(200)
    engine.score(prompt)
    handle = engine.submit(prompt, score_from=None, output=3)
    engine.run()
    assert engine.ended[handle].usage.cached_tokens == 192


def test_a_continuation_can_be_scored_too(hybrid: Checkpoint) -> None:
    engine = bench(hybrid.folder, chunk_tokens=31)
    prompt = tokens(100)
    whole = engine.submit(prompt, output=8)
    engine.run()
    rest = engine.submit(prompt, score_from=60, output=8, emitted=tuple(engine.output[whole][:5]), salt="another")
    engine.run()
    assert engine.output[rest] == engine.output[whole][5:]
    assert engine.scores[rest] == {at: score for at, score in engine.scores[whole].items() if at > 60}


def test_a_prompt_that_leaves_no_room_for_output_can_be_scored(hybrid: Checkpoint) -> None:
    engine = bench(hybrid.folder, max_len=160)
    scores, _ = engine.score(tokens(160))
    require_oracle(scores, hybrid, tokens(160), 0)


class Spoilt:
    """A model whose logits of one position of one step are NaN."""

    def __init__(self, model: Model, row: int) -> None:
        self._model, self._row = model, row
        self.state, self.device = model.state, model.device
        self.vocab_size, self.max_position = model.vocab_size, model.max_position

    def forward(self, step: StepContext) -> torch.Tensor:
        logits = self._model.forward(step).clone()
        if step.row_count == 2 and step.decode_rows == 1:
            logits[self._row] = float("nan")
        return logits


@pytest.mark.parametrize("row", [1, 40])
def test_a_prompt_whose_logits_are_none_ends_with_an_error_and_the_others_go_on(hybrid: Checkpoint, row: int) -> None:
    model = load_model(hybrid.folder, BuildOptions(deterministic=True))
    engine = bench(hybrid.folder, model=Spoilt(model, row))
    other = engine.submit(tokens(20, 3), score_from=None, output=5)
    record = engine.built.engine.launch()
    assert record is not None
    engine.output[other] += [token.token_id for token in engine.built.engine.commit(record).tokens]
    spoilt = engine.submit(tokens(60))
    engine.run()
    assert engine.ended[spoilt].reason is FinishReason.ERROR
    assert engine.scores[spoilt] == {}
    assert len(engine.output[other]) == 5
    assert engine.ended[other].reason is FinishReason.LENGTH


def test_the_logits_of_a_step_have_a_bound() -> None:
    assert scored_tokens_max(150_000) == 111
    assert scored_tokens_max(2**30) == 1


lengths = st.lists(st.tuples(st.integers(2, 40), st.integers(0, 45), st.integers(0, 6)), min_size=1, max_size=6)


@given(lengths, st.integers(1, 9), st.integers(1, 12), st.booleans())
@settings(max_examples=150)
def test_a_step_scores_no_more_than_it_may_and_every_request_gets_there(
    requests: list[tuple[int, int, int]], chunk: int, bound: int, cached: bool
) -> None:
    made = rig(chunk_tokens=chunk, step_tokens=12, scored_tokens=bound, max_len=64, cached=cached, slots=12)
    wanted: dict[Handle, list[float]] = {}
    for number, (length, first, output) in enumerate(requests, 1):
        asked = spec(f"q{number}", length, max_tokens=output, ignore_eos=True)
        score_from = min(first, length - 2) if output == 0 or first < length - 1 else None
        sampling = replace(asked.sampling, logprobs=0)
        made.engine.submit(replace(asked, score_from=score_from, sampling=sampling), Handle(number))
        wanted[Handle(number)] = [] if score_from is None else [-float(at) for at in range(score_from + 1, length)]
    found: dict[Handle, list[float]] = {handle: [] for handle in wanted}
    for _ in range(2000):
        if (record := made.engine.launch()) is None:
            break
        assert sum(len(row.scored) for row in record.plan.rows) <= bound
        for of in made.engine.commit(record).scores:
            found[of.handle] += of.scores.logprobs
        made.engine.check()
    assert found == wanted
    made.require_whole()


def test_a_prompt_that_is_cancelled_while_it_is_scored_tells_nothing_more_and_leaks_nothing() -> None:
    made = rig(cached=True)
    asked = spec("q", 30, max_tokens=0)
    made.engine.submit(replace(asked, score_from=0, sampling=replace(asked.sampling, logprobs=0)), Handle(1))
    made.step()
    record = made.engine.launch()
    assert record is not None
    made.engine.cancel(Handle(1), 1)
    news = made.engine.commit(record)
    assert not news.scores
    assert not news.ended
    assert [ended.reason for ended in made.engine.take_ended()] == [FinishReason.CANCELLED]
    made.require_whole()


def test_a_prefill_worker_scores_nothing_for_others(hybrid: Checkpoint) -> None:
    engine = bench(hybrid.folder, role="prefill").built.engine
    asked = spec("q", 30, max_tokens=4)
    asked = replace(asked, score_from=0, sampling=replace(asked.sampling, logprobs=0))
    with pytest.raises(InvalidRequest, match="not by one that computes prompts for others") as refused:
        engine.submit_for(WorkerId("d"), asked, Handle(1))
    assert refused.value.param == "score_from"
    assert engine.idle
