"""Where the end of a prompt is computed: within its bound, by whichever way has cost less, and by the bound alone
until both are known. Costs are those that were observed.
"""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from segue.batch.request import Request
from segue.batch.suffix_costs import RECENT, STALE_S, Choice, Reason, Rule, SuffixCosts
from segue.ids import Handle
from tests.support.policies import Clock, spec

counts = st.integers(1, 300)
seconds = st.floats(1e-6, 10.0)
depths = st.integers(0, 299)


def known_to(known: int, bound: int, score_from: int | None = None) -> Request:
    request = Request.of(replace(spec("q", known), score_from=score_from), Handle(1), 0.0)
    request.extend_max = bound
    return request


def seen(*, per_token_s: float, fixed_s: float, sent_token_s: float, clock: Clock | None = None) -> SuffixCosts:
    """A worker that extends at one speed, and whose prefill worker has nothing cached and answers at another."""
    costs = SuffixCosts(clock or Clock())
    costs.stepped(100 * per_token_s, 100, beside=False)
    for known in range(10, 10 + RECENT):
        costs.handed_over(fixed_s + known * sent_token_s, known, 0)
    return costs


def choose(costs: SuffixCosts, known: int, cached: int, bound: int, decoding: int = 0, by: Rule = Rule.COST) -> Choice:
    return costs.choose(by, known_to(known, bound), cached, decoding)


@given(seconds, seconds, seconds, counts, depths, st.integers(0, 300), st.integers(0, 40), st.sampled_from(Rule))
def test_never_more_than_the_bound_is_computed_here(
    extend: float, fixed: float, sent: float, known: int, cached: int, bound: int, decoding: int, by: Rule
) -> None:
    cached = min(cached, known - 1)
    costs = seen(per_token_s=extend, fixed_s=fixed, sent_token_s=sent)
    choice = choose(costs, known, cached, bound, decoding, by)
    assert not choice.here or known - cached <= bound
    assert (choice.reason is Reason.LONG) == (known - cached > bound)


@given(seconds, seconds, seconds, counts, depths, st.integers(0, 40))
def test_what_is_chosen_costs_no_more_than_what_is_not(
    extend: float, fixed: float, sent: float, known: int, cached: int, decoding: int
) -> None:
    assume(0 < cached < known)
    costs = seen(per_token_s=extend, fixed_s=fixed, sent_token_s=sent)
    here, there = costs.extend_s(known - cached, decoding), costs.send_s(known)
    assert here is not None
    assert there is not None
    assert choose(costs, known, cached, 300, decoding) == Choice(here <= there, Reason.CHEAPER)


@given(seconds, seconds, seconds, counts, depths, st.integers(0, 40), st.integers(0, 40))
def test_whoever_is_sent_away_is_sent_away_when_more_decode_here(
    extend: float, fixed: float, sent: float, known: int, cached: int, decoding: int, more: int
) -> None:
    assume(0 < cached < known)
    costs = seen(per_token_s=extend, fixed_s=fixed, sent_token_s=sent)
    if not choose(costs, known, cached, 300, decoding).here:
        assert not choose(costs, known, cached, 300, decoding + more).here


@given(st.lists(st.tuples(st.floats(0, 10.0), counts, depths), min_size=RECENT, max_size=60), counts, counts)
def test_an_estimate_is_never_below_nothing_nor_less_for_a_longer_prompt(
    handoffs: list[tuple[float, int, int]], one: int, other: int
) -> None:
    costs = SuffixCosts(Clock())
    for took_s, known, reused in handoffs:
        costs.handed_over(took_s, known, min(reused, known - 1))
    less, more = costs.send_s(min(one, other)), costs.send_s(max(one, other))
    assert less is not None
    assert more is not None
    assert 0 <= less <= more + 1e-9


@pytest.mark.parametrize("cached", [0.0, 0.75])
def test_the_fixed_part_of_a_handoff_is_told_from_that_of_each_token(cached: float) -> None:
    costs = SuffixCosts(Clock())
    for number in range(40):
        known = 100 + 40 * (number * 7 % 11)
        reused = int(known * cached)
        costs.handed_over(0.2 + 0.001 * (known - reused), known, reused)
    assert costs.send_s(1000) == pytest.approx(0.2 + 0.001 * 1000 * (1 - cached), rel=1e-6)


def test_handoffs_of_one_length_cost_in_proportion() -> None:
    costs = SuffixCosts(Clock())
    for _ in range(RECENT):
        costs.handed_over(0.5, 100, 0)
    assert costs.send_s(100) == pytest.approx(0.5)
    assert costs.send_s(50) == pytest.approx(0.25)


def test_a_handoff_of_which_all_was_cached_costs_what_it_did() -> None:
    costs = SuffixCosts(Clock())
    for _ in range(RECENT):
        costs.handed_over(0.5, 100, 100)
    assert costs.send_s(70) == pytest.approx(0.5)


def test_of_a_step_that_decodes_as_well_only_what_it_took_longer_is_the_extension() -> None:
    costs = SuffixCosts(Clock())
    for _ in range(50):
        costs.stepped(0.03, 0, beside=True)
    costs.stepped(0.13, 200, beside=True)
    assert costs.extend_s(100, 0) == pytest.approx(0.05)
    # Each of those that decode waits for it, too.
    assert costs.extend_s(100, 3) == pytest.approx(4 * 0.05)


@given(st.lists(st.tuples(seconds, counts, st.booleans()), min_size=1, max_size=40), counts, st.integers(0, 9))
def test_no_extension_costs_less_than_nothing(steps: list[tuple[float, int, bool]], tokens: int, decoding: int) -> None:
    costs = SuffixCosts(Clock())
    for took_s, extended, beside in steps:
        costs.stepped(took_s, 0, beside=True)
        costs.stepped(took_s / 2, extended, beside=beside)
    found = costs.extend_s(tokens, decoding)
    assert found is not None
    assert found >= 0


def test_what_was_long_ago_fades() -> None:
    costs = seen(per_token_s=0.001, fixed_s=9.0, sent_token_s=0.0)
    for known in range(10, 10 + 10 * RECENT):
        costs.handed_over(0.1, known, 0)
    there = costs.send_s(100)
    assert there is not None
    assert there < 0.2


@pytest.mark.parametrize("missing", ["steps", "handoffs", "a handoff"])
def test_without_both_costs_the_bound_decides(missing: str) -> None:
    costs = SuffixCosts(Clock())
    if missing != "steps":
        costs.stepped(1e9, 1, beside=False)
    for known in range(RECENT - (missing == "a handoff") if missing != "handoffs" else 0):
        costs.handed_over(1e-9, 10 + known, 0)
    assert choose(costs, 100, 60, 40) == Choice(True, Reason.SHORT)


def test_costs_that_are_old_decide_nothing() -> None:
    clock = Clock()
    costs = seen(per_token_s=1.0, fixed_s=0.1, sent_token_s=0.0, clock=clock)
    assert choose(costs, 100, 60, 40) == Choice(False, Reason.CHEAPER)
    clock.now = STALE_S + 1
    assert choose(costs, 100, 60, 40) == Choice(True, Reason.SHORT)
    # Handoffs alone, of prompts that are long, do not tell what it costs here.
    costs.handed_over(0.1, 500, 0)
    assert choose(costs, 100, 60, 40) == Choice(True, Reason.SHORT)


def test_by_the_threshold_costs_decide_nothing() -> None:
    costs = seen(per_token_s=1.0, fixed_s=0.1, sent_token_s=0.0)
    assert choose(costs, 100, 60, 40, by=Rule.THRESHOLD) == Choice(True, Reason.SHORT)


def test_a_prompt_of_which_nothing_is_cached_is_not_computed_here() -> None:
    costs = seen(per_token_s=1e-9, fixed_s=9.0, sent_token_s=9.0)
    assert choose(costs, 30, 0, 40) == Choice(False, Reason.UNCACHED)


def test_scores_are_told_here_whatever_they_cost() -> None:
    costs = seen(per_token_s=1.0, fixed_s=0.0, sent_token_s=0.0)
    assert costs.choose(Rule.COST, known_to(300, 0, score_from=5), 0, 9) == Choice(True, Reason.SCORED)
