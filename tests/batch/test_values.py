"""Sampling parameters, the table of moves, and a request's tokens."""

import pytest

from segue.batch.lifecycle import Phase, move
from segue.batch.request import Request
from segue.batch.sampling import MAX_STOP_TOKEN_IDS, SamplingParams
from segue.errors import InvalidRequest
from segue.ids import Handle, RequestId
from segue.tokens import EmittedToken, token_array


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("min_p", -1.0),
        ("top_k", -1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-309),
        ("presence_penalty", 2.5),
        ("frequency_penalty", float("inf")),
        ("max_tokens", -1),
        ("min_tokens", 17),
        ("logprobs", 21),
        ("seed", -1),
        ("logit_bias", ((3, 101.0),)),
        ("stop_token_ids", tuple(range(MAX_STOP_TOKEN_IDS + 1))),
    ],
)
def test_a_value_out_of_range_is_refused_and_its_parameter_named(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{"seed": 1, name: value})  # type: ignore[arg-type]
    assert caught.value.param == name


@pytest.mark.parametrize("ended", [Phase.FINISHED, Phase.ABORTED])
def test_an_ended_request_goes_nowhere(ended: Phase) -> None:
    for phase in Phase:
        with pytest.raises(AssertionError, match="cannot go"):
            move(ended, phase)


def test_decoding_cannot_go_back_to_extending() -> None:
    with pytest.raises(AssertionError):
        move(Phase.DECODING, Phase.EXTENDING)


def test_tokens_run_on_from_prompt_into_output() -> None:
    request = Request(Handle(1), RequestId("a"), 1, token_array((10, 11, 12)), SamplingParams(seed=0))
    request.output += [EmittedToken(20, 0.0), EmittedToken(21, 0.0)]
    assert request.tokens(0, 5) == [10, 11, 12, 20, 21]
    assert request.tokens(2, 4) == [12, 20]
    assert request.tokens(4, 5) == [21]
    assert request.token_bytes(1, 4) == token_array([11, 12, 20]).tobytes()
    assert [request.token_at(i) for i in range(5)] == [10, 11, 12, 20, 21]
    with pytest.raises(AssertionError):
        request.tokens(4, 6)
