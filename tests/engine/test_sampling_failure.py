"""A request whose logits leave no token to choose ends with an error; those beside it lose nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from segue.batch.failure import NO_TOKEN, SamplingFailed
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.errors import InvalidRequest
from segue.ids import Handle
from tests.support.policies import rig, spec

GOOD, BAD = Handle(1), Handle(2)


@pytest.mark.parametrize("index", [0, 2])
def test_only_the_failed_request_ends_and_the_step_counts_for_the_others(index: int) -> None:
    made = rig()
    made.runner.script["bad", index] = NO_TOKEN
    made.engine.submit(spec("good", 4, max_tokens=6), GOOD)
    made.engine.submit(spec("bad", 4, max_tokens=6), BAD)
    tokens: dict[Handle, list[int]] = {GOOD: [], BAD: []}
    ended = []
    while (record := made.engine.launch()) is not None:
        news = made.engine.commit(record)
        made.engine.check()
        for handle, token in zip(news.handles, news.tokens, strict=True):
            tokens[handle].append(token.token_id)
        ended += [*news.ended, *made.engine.take_ended()]
    assert tokens == {GOOD: [7] * 6, BAD: [7] * index}
    by_handle = {end.handle: end for end in ended}
    assert by_handle[GOOD].reason is FinishReason.LENGTH
    assert by_handle[BAD].reason is FinishReason.ERROR
    assert isinstance(by_handle[BAD].error, SamplingFailed)
    assert made.engine.idle
    assert all(pool.held == 0 for pool in made.engine.status().pools)


def test_of_two_failed_requests_each_error_names_its_own_only() -> None:
    made = rig()
    for handle, name in ((GOOD, "first"), (BAD, "second")):
        made.runner.script[name, 0] = NO_TOKEN
        made.engine.submit(spec(name), handle)
    made.step()
    words = {end.handle: str(end.error) for end in made.engine.take_ended()}
    assert "first" in words[GOOD]
    assert "second" not in words[GOOD]
    assert "second" in words[BAD]
    assert "first" not in words[BAD]


@pytest.mark.parametrize(("ignore_eos", "stops"), [(True, range(100)), (False, (0, *range(2, 100)))])
def test_a_request_that_forbids_itself_every_token_is_refused(ignore_eos: bool, stops: Sequence[int]) -> None:
    made = rig()
    asked = spec("a", min_tokens=1, ignore_eos=ignore_eos, stop_token_ids=tuple(stops))
    with pytest.raises(InvalidRequest, match="leaves no token"):
        made.engine.submit(asked, GOOD)
    made.engine.submit(spec("a", stop_token_ids=tuple(range(100))), GOOD)


@pytest.mark.parametrize("token", [-1, 10**6])
def test_parameters_that_name_a_token_outside_the_vocabulary_are_refused(token: int) -> None:
    made = rig()
    biased = SamplingParams(seed=1, logit_bias=((1, 1.0), (token, 1.0)))
    with pytest.raises(InvalidRequest, match=f"logit_bias names token id {token}"):
        made.engine.submit(replace(spec("a"), sampling=biased), GOOD)
    with pytest.raises(InvalidRequest, match=f"stop_token_ids names token id {token}"):
        made.engine.submit(spec("a", stop_token_ids=(1, token)), GOOD)
    assert made.engine.idle
