"""What the overload benchmark asks and counts."""

from benchmarks.overload import OUTPUT_MAX, PROMPT_MAX, Arm, _body
from benchmarks.streaming import Answer


def test_both_arms_are_asked_the_same_and_no_two_requests_alike() -> None:
    bodies = [_body("m", 3, number) for number in range(50)]
    assert bodies == [_body("m", 3, number) for number in range(50)]
    assert len({str(body["prompt"]) for body in bodies}) == 50
    for body in bodies:
        prompt, output = body["prompt"], body["max_tokens"]
        assert isinstance(prompt, list)
        assert isinstance(output, int)
        assert PROMPT_MAX // 4 <= len(prompt) <= PROMPT_MAX
        assert OUTPUT_MAX // 8 <= output <= OUTPUT_MAX


def test_of_an_answer_that_the_end_cuts_counts_what_had_come() -> None:
    arm = Arm("url", {0: answer(100, (1.0, 2.0, 3.0, 4.0)), 1: answer(60, (5.0, 6.0))})
    assert arm.tokens_by(0.5) == 0
    assert arm.tokens_by(3.5) == 75
    assert arm.tokens_by(5.0) == 130
    assert arm.tokens_by(9.0) == 160


def answer(tokens: int, times_s: tuple[float, ...]) -> Answer:
    return Answer(0.0, times_s, times_s[-1], "text", "length", 10, tokens)
