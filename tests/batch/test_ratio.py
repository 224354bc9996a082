"""Admission's estimate of outputs is the formula that is written down, to the number."""

import pytest

from segue.batch.ratio import NewTokenRatio, RetractionRules
from segue.batch.request import Request
from segue.ids import Handle
from segue.tokens import EmittedToken
from tests.support.policies import spec


def request(output: int, max_tokens: int) -> Request:
    made = Request.of(spec("q", 10, max_tokens=max_tokens), Handle(1), 0.0)
    made.output += [EmittedToken(5, 0.0)] * output
    return made


@pytest.mark.parametrize(
    ("outputs", "ratio"),
    [
        ([(10, 100)], (10 + 20) / 101),
        ([(10, 100), (50, 99)], (60 + 40) / 200),
        ([(90, 100)], 1.0),
        ([(0, 999)], 20 / 1000),
    ],
)
def test_a_retraction_sets_it_to_what_those_that_stay_have_used_and_will_soon(
    outputs: list[tuple[int, int]], ratio: float
) -> None:
    made = NewTokenRatio(RetractionRules())
    made.learn_from([request(*one) for one in outputs])
    assert made.value == pytest.approx(ratio)


def test_it_falls_from_start_to_floor_in_so_many_steps_and_stays_there() -> None:
    made = NewTokenRatio(RetractionRules(ratio_start=0.7, ratio_floor=0.1, ratio_steps=600))
    for _ in range(300):
        made.decay()
    assert made.value == pytest.approx(0.4)
    for _ in range(301):
        made.decay()
    assert made.value == 0.1
    made.decay()
    assert made.value == 0.1


@pytest.mark.parametrize(("output", "expected"), [(0, 50), (41, 29), (80, 19), (99, 0)])
def test_it_is_a_share_of_what_may_still_come_but_the_headroom_at_least(output: int, expected: int) -> None:
    made = NewTokenRatio(RetractionRules(headroom_steps=20, ratio_start=0.5))
    assert made.expected(request(output, 100)) == expected
