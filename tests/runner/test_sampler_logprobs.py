"""Logprobs: of the raw logits, sorted, ties by id, only for those who asked."""

import numpy as np
import torch

from segue.batch.failure import NO_TOKEN
from segue.batch.sampling import SamplingParams
from segue.runner.sampler import Sampler
from tests.runner.requests import request_with

VOCAB = 64


def test_nobody_asked_so_nothing_is_reported() -> None:
    output = Sampler([], VOCAB).sample(torch.randn(2, VOCAB), [request_with(SamplingParams(seed=0))] * 2)
    assert output.top is None
    assert output.logprobs.tolist() == [0.0, 0.0]


def test_logprobs_are_those_of_the_model_before_any_processing() -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2)) * 4
    expected = torch.log_softmax(logits.double(), -1)[0]
    for sampling in (
        SamplingParams(seed=0, temperature=0.0, logprobs=20),
        SamplingParams(seed=1, temperature=2.0, top_p=0.5, presence_penalty=1.0, logit_bias=((3, 9.0),), logprobs=20),
    ):
        output = Sampler([], VOCAB).sample(logits, [request_with(sampling, output=(1, 2))])
        assert output.top is not None
        np.testing.assert_allclose(output.logprobs[0], expected[output.token_ids[0]], rtol=1e-6)
        best = expected.topk(20)
        assert output.top.token_ids[0].tolist() == best.indices.tolist()
        np.testing.assert_allclose(output.top.logprobs[0], best.values, rtol=1e-6)


def test_equal_alternatives_come_in_order_of_id() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [50, 40]] = 1.0
    output = Sampler([], VOCAB).sample(logits, [request_with(SamplingParams(seed=0, temperature=0.0, logprobs=5))])
    assert output.top is not None
    assert output.token_ids[0] == 40
    assert output.top.token_ids[0].tolist() == [40, 50, 0, 1, 2]


def test_rows_that_want_fewer_or_no_alternatives_are_padded() -> None:
    requests = [
        request_with(SamplingParams(seed=0, logprobs=count))
        if count is not None
        else request_with(SamplingParams(seed=0))
        for count in (3, None, 0, 1)
    ]
    output = Sampler([], VOCAB).sample(torch.randn(4, VOCAB), requests)
    assert output.top is not None
    assert output.top.token_ids.shape == output.top.logprobs.shape == (4, 3)
    assert [(row != NO_TOKEN).sum() for row in output.top.token_ids] == [3, 0, 0, 1]
    assert [value != 0.0 for value in output.logprobs] == [True, False, True, True]


def test_a_row_of_zero_alternatives_still_reports_the_chosen_token() -> None:
    output = Sampler([], VOCAB).sample(torch.randn(1, VOCAB), [request_with(SamplingParams(seed=0, logprobs=0))])
    assert output.top is not None
    assert output.top.token_ids.shape == (1, 0)
    assert output.logprobs[0] < 0.0


def test_more_alternatives_than_tokens_are_all_the_tokens() -> None:
    output = Sampler([], 4).sample(torch.randn(1, 4), [request_with(SamplingParams(seed=0, logprobs=20))])
    assert output.top is not None
    assert sorted(output.top.token_ids[0, :4].tolist()) == [0, 1, 2, 3]
    assert (output.top.token_ids[0, 4:] == NO_TOKEN).all()
