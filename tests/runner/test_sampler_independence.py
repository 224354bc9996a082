"""A sampled token depends on its own row and request alone: not on the batch, or on how the vocabulary is cut."""

import dataclasses

import numpy as np
import torch

from segue.batch.sampling import SamplingParams
from segue.runner.noise import gumbel, row_key
from segue.runner.sampler import Sampler
from segue.tokens import EmittedToken
from tests.runner.requests import request_with

VOCAB = 2_048
KINDS = [
    SamplingParams(seed=1, temperature=0.0),
    SamplingParams(seed=2),
    SamplingParams(seed=3, temperature=0.7, top_p=0.9, logprobs=3),
    SamplingParams(seed=4, top_k=40, presence_penalty=0.5),
    SamplingParams(seed=5, min_p=0.01, repetition_penalty=1.2, logprobs=0),
    SamplingParams(seed=6, temperature=1.5, logit_bias=((9, 2.0),), logprobs=20),
]


def logits_of(rows: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def test_a_row_gives_the_same_bits_alone_and_anywhere_in_any_batch() -> None:
    rows = 32
    logits = logits_of(rows, 3)
    requests = [
        request_with(dataclasses.replace(KINDS[row % len(KINDS)], seed=row), prompt=range(row), output=range(row * 3))
        for row in range(rows)
    ]
    sampler = Sampler([0], VOCAB)
    together = sampler.sample(logits, requests)
    order = np.random.default_rng(1).permutation(rows)
    permuted = sampler.sample(logits[torch.from_numpy(order)], [requests[row] for row in order])
    assert together.top is not None
    assert permuted.top is not None
    for place, row in enumerate(order):
        alone = Sampler([0], VOCAB).sample(logits[row : row + 1], [requests[row]])
        wanted = requests[row].sampling.logprobs
        for other, at in ((together, row), (permuted, place)):
            assert other.token_ids[at] == alone.token_ids[0]
            assert other.logprobs[at].tobytes() == alone.logprobs[0].tobytes()
            if wanted:
                assert alone.top is not None
                assert other.top is not None
                assert np.array_equal(other.top.token_ids[at, :wanted], alone.top.token_ids[0])
                assert other.top.logprobs[at, :wanted].tobytes() == alone.top.logprobs[0].tobytes()


def test_a_row_gives_the_same_bits_wherever_its_memory_lies() -> None:
    # Vector instructions must not treat the ends of a row, or an unaligned one, differently.
    sampler = Sampler([0], VOCAB)
    row = logits_of(1, 4)[0]
    expected = sampler.sample(row[None], [request_with(KINDS[2])])
    for offset in range(1, 17):
        shifted = torch.empty(VOCAB + offset)[offset:]
        shifted.copy_(row)
        moved = sampler.sample(shifted[None], [request_with(KINDS[2])])
        assert moved.token_ids[0] == expected.token_ids[0]
        assert moved.logprobs[0].tobytes() == expected.logprobs[0].tobytes()


def test_the_winner_of_the_winners_of_vocabulary_shards_is_the_winner() -> None:
    sampler = Sampler([0], VOCAB)
    for position in range(64):
        logits = logits_of(1, position)
        request = request_with(SamplingParams(seed=9, choice=2, temperature=0.8), output=range(position))
        key = row_key(9, 2, position)
        for shards in (2, 4, 8):
            winners = []
            for ids in np.split(np.arange(VOCAB), shards):
                scores = logits[0].numpy().astype(np.float64)[ids] / 0.8 + gumbel(key, ids)
                winners.append((scores.max(), int(ids[scores.argmax()])))
            assert max(winners)[1] == sampler.sample(logits, [request]).token_ids[0]


def test_seed_choice_and_position_each_change_the_draw() -> None:
    sampler = Sampler([0], VOCAB)
    flat = torch.zeros(1, VOCAB)

    def draws(seed: int, choice: int, start: int) -> list[int]:
        sampling = SamplingParams(seed=seed, choice=choice, max_tokens=99)
        outputs = [range(start + length) for length in range(12)]
        return [int(sampler.sample(flat, [request_with(sampling, output=output)]).token_ids[0]) for output in outputs]

    first = draws(5, 0, 0)
    assert draws(5, 0, 0) == first
    assert draws(5, 0, 4)[:8] == first[4:]
    assert len({tuple(first), tuple(draws(6, 0, 0)), tuple(draws(5, 1, 0)), tuple(draws(5, 0, 1))}) == 4
    assert len(set(first)) > 8


def test_a_continuation_draws_what_the_uninterrupted_request_draws() -> None:
    sampling = SamplingParams(
        seed=77, temperature=0.9, top_p=0.95, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.1,
        min_tokens=20, max_tokens=60,
    )  # fmt: skip

    def run(request_output: list[int], until: int) -> list[int]:
        sampler = Sampler([0], VOCAB)
        request = request_with(sampling, prompt=range(30), output=request_output)
        while len(request.output) < until:
            token = int(sampler.sample(logits_of(1, len(request.output)), [request]).token_ids[0])
            request.output.append(EmittedToken(token, 0.0))
        return [token.token_id for token in request.output]

    whole = run([], 60)
    for split in (1, 19, 20, 45):
        assert run(whole[:split], 60) == whole
