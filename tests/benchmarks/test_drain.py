"""What the drain benchmark counts as different, and as a gap."""

from dataclasses import replace

from benchmarks.drain import differing, longest_gap_s
from benchmarks.streaming import Answer

ANSWER = Answer(0.0, (1.0, 2.0, 2.5, 4.5), 5.0, "abcd", "length", 10, 4, ("a", "b", "c", "d"), (-0.1, -0.2, -0.3, -0.4))


def test_tokens_logprobs_and_missing_ends_differ() -> None:
    assert differing(ANSWER, ANSWER) == 0
    assert differing(replace(ANSWER, tokens=("a", "x", "c", "d")), ANSWER) == 1
    assert differing(replace(ANSWER, logprobs=(-0.1, -0.2, -0.3, -0.5)), ANSWER) == 1
    assert differing(replace(ANSWER, tokens=("a", "b"), logprobs=(-0.1, -0.2)), ANSWER) == 2


def test_a_gap_counts_that_ends_after_the_moment() -> None:
    assert longest_gap_s(ANSWER, 0.0) == 2.0
    assert longest_gap_s(ANSWER, 4.0) == 2.0
    assert longest_gap_s(ANSWER, 5.0) == 0.0
