"""The sampler against its definition: each parameter alone and together, greedy choice, distribution, failures."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from segue.batch.failure import NO_TOKEN, SamplingFailed
from segue.batch.request import Request
from segue.batch.sampling import SamplingParams
from segue.errors import CheckpointError
from segue.runner.sampler import Sampler
from segue.runner.truncation import kept_tokens
from tests.runner.chi_square import surprise
from tests.runner.requests import request_with
from tests.runner.sampling_reference import allowed_tokens, probabilities, processed_logits

VOCAB = 24
EOS = (3, 7)
DRAWS = 4_000

ALONE = {
    "temperature": SamplingParams(seed=0, temperature=0.6),
    "hot": SamplingParams(seed=0, temperature=3.0),
    "top_p": SamplingParams(seed=0, top_p=0.7),
    "top_k": SamplingParams(seed=0, top_k=5),
    "min_p": SamplingParams(seed=0, min_p=0.2),
    "repetition_penalty": SamplingParams(seed=0, repetition_penalty=1.8),
    "repetition_reward": SamplingParams(seed=0, repetition_penalty=0.5),
    "presence_penalty": SamplingParams(seed=0, presence_penalty=1.5),
    "frequency_penalty": SamplingParams(seed=0, frequency_penalty=0.7),
    "logit_bias": SamplingParams(seed=0, logit_bias=((2, 3.0), (5, -100.0))),
    "min_tokens": SamplingParams(seed=0, min_tokens=10, stop_token_ids=(4,)),
    "min_tokens_past_eos": SamplingParams(seed=0, min_tokens=10, stop_token_ids=(4,), ignore_eos=True),
    "all": SamplingParams(
        seed=0, temperature=1.3, top_p=0.9, top_k=12, min_p=0.02, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=0.2, logit_bias=((1, 1.0),), min_tokens=10,
    ),
}  # fmt: skip


@pytest.fixture
def sampler() -> Sampler:
    return Sampler(EOS, VOCAB)


def some_logits(seed: int = 0, rows: int = 1, scale: float = 1.5) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def logits_favouring_output(seed: int) -> torch.Tensor:
    """Logits in which the tokens that were output already are likely, so that penalties tell."""
    logits = some_logits(seed)
    logits[0, [2, 5, 9]] += torch.tensor([3.0, 3.5, 2.0])
    return logits


def token_of(sampler: Sampler, logits: torch.Tensor, request: Request) -> int:
    return int(sampler.sample(logits, [request]).token_ids[0])


@pytest.mark.parametrize("name", ALONE)
def test_draws_follow_the_distribution_that_the_parameters_define(sampler: Sampler, name: str) -> None:
    logits = logits_favouring_output(len(name))
    requests = [
        request_with(dataclasses.replace(ALONE[name], seed=seed), prompt=(1, 2, 2), output=(2, 5, 5, 9))
        for seed in range(DRAWS)
    ]
    drawn = sampler.sample(logits.expand(DRAWS, VOCAB), requests).token_ids
    expected = probabilities(logits[0].tolist(), requests[0], EOS)
    counts = np.bincount(drawn, minlength=VOCAB)
    assert all(count == 0 for count, share in zip(counts, expected, strict=True) if share == 0.0)
    # Tokens too rare for the chi-square approximation are counted together.
    common = [token for token in range(VOCAB) if expected[token] * DRAWS >= 5]
    rare = [token for token in range(VOCAB) if 0 < expected[token] * DRAWS < 5]
    observed = [int(counts[token]) for token in common] + [int(counts[rare].sum())] * bool(rare)
    means = [expected[token] * DRAWS for token in common] + [sum(expected[t] for t in rare) * DRAWS] * bool(rare)
    assert surprise(observed, means) < 4, list(zip(observed, means, strict=True))


@pytest.mark.parametrize("name", ALONE)
def test_temperature_zero_takes_the_best_processed_logit(sampler: Sampler, name: str) -> None:
    sampling = dataclasses.replace(ALONE[name], temperature=0.0)
    for seed in range(50):
        request = request_with(sampling, prompt=(1, 2, 2), output=(2, 5, 5, 9))
        logits = logits_favouring_output(seed)
        scores = processed_logits(logits[0].tolist(), request, EOS)
        assert token_of(sampler, logits, request) == scores.index(max(scores))


def test_greedy_ties_go_to_the_lowest_id(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [6, 11, 20]] = 2.0
    assert token_of(sampler, logits, request_with(SamplingParams(seed=1, temperature=0.0))) == 6
    assert (
        token_of(sampler, logits, request_with(SamplingParams(seed=1, temperature=0.0, logit_bias=((6, -1.0),)))) == 11
    )


@given(
    scores=st.lists(st.sampled_from([0.0, -0.5, -0.5, -1.0, -2.0, -30.0, -math.inf]), min_size=1, max_size=40),
    top_k=st.integers(0, 12),
    top_p=st.sampled_from([0.05, 0.3, 0.5, 0.8, 0.97, 0.999_999, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 0.5, 0.7, 1.0]),
)
def test_cuts_keep_the_tokens_that_sorting_by_score_then_id_keeps(
    scores: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    sampling = SamplingParams(seed=0, top_k=top_k, top_p=top_p, min_p=min_p)
    with_best = [0.0, *scores]
    kept = [token for token in kept_tokens(np.array(with_best), sampling) if with_best[token] > -math.inf]
    assert kept == allowed_tokens(with_best, sampling)


def test_a_minute_temperature_is_greedy_and_overflows_nowhere(sampler: Sampler) -> None:
    for seed in range(20):
        logits = some_logits(seed, scale=100.0)
        cold = request_with(SamplingParams(seed=seed, temperature=1e-300, top_p=0.9))
        assert token_of(sampler, logits, cold) == int(logits.argmax())


def test_choosing_leaves_the_logits_as_they_were(sampler: Sampler) -> None:
    logits = some_logits(rows=len(ALONE))
    before = logits.clone()
    sampler.sample(logits, [request_with(sampling, output=(2,)) for sampling in ALONE.values()])
    assert torch.equal(logits, before)


def test_eos_is_possible_once_min_tokens_are_out(sampler: Sampler) -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS[0]] = 50.0
    sampling = SamplingParams(seed=0, min_tokens=3, max_tokens=9)
    assert token_of(sampler, logits, request_with(sampling, output=(1, 1))) not in EOS
    assert token_of(sampler, logits, request_with(sampling, output=(1, 1, 1))) == EOS[0]


def test_penalties_count_output_as_it_grows_and_forget_a_request_that_is_gone(sampler: Sampler) -> None:
    sampling = SamplingParams(seed=0, temperature=0.0, frequency_penalty=0.5, repetition_penalty=1.1)
    growing = request_with(sampling, prompt=(0, 1, 2))
    for step in range(200):
        scores = processed_logits(some_logits(step)[0].tolist(), growing, EOS)
        token = token_of(sampler, some_logits(step), growing)
        assert token == scores.index(max(scores))
        growing.output.append(request_with(sampling, output=(token,)).output[0])
    assert len(sampler._counts) == 1
    del growing
    assert len(sampler._counts) == 0


@pytest.mark.parametrize("spoil", [math.nan, math.inf])
def test_a_row_without_a_best_logit_fails_alone_and_by_name(sampler: Sampler, spoil: float) -> None:
    logits = some_logits(rows=3)
    good = sampler.sample(logits, [request_with(SamplingParams(seed=seed)) for seed in range(3)]).token_ids
    logits[1, 13] = spoil
    requests = [request_with(SamplingParams(seed=seed, logprobs=2)) for seed in range(3)]
    with pytest.raises(SamplingFailed, match=r"for seed-1$") as caught:
        sampler.sample(logits, requests)
    assert caught.value.failed == (requests[1],)
    assert caught.value.output.token_ids.tolist() == [good[0], NO_TOKEN, good[2]]


def test_a_request_whose_every_token_is_masked_fails_by_name() -> None:
    sampler = Sampler((0, 1), 2)
    with pytest.raises(SamplingFailed, match="all masked"):
        sampler.sample(torch.zeros(1, 2), [request_with(SamplingParams(seed=1, min_tokens=1))])


def test_a_step_that_samples_nothing_gives_an_empty_output(sampler: Sampler) -> None:
    output = sampler.sample(torch.zeros(0, VOCAB), [])
    assert len(output.token_ids) == len(output.logprobs) == 0
    assert output.top is None


@pytest.mark.parametrize("token", [-1, VOCAB])
def test_an_eos_token_that_the_model_does_not_have_is_refused_at_start_up(token: int) -> None:
    with pytest.raises(CheckpointError, match=f"eos_token_id {token} is none of the model's 24 tokens"):
        Sampler((0, token), VOCAB)
