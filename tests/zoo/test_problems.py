"""Problems are functions of their seed, training and evaluation never share one, and answers are read as written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.zoo.problems import (
    EVALUATION_PROBLEMS_PER_SEED,
    EVALUATION_SEED_START,
    TRAINING_SEED_END,
    Problem,
    chat_messages,
    evaluation_problem,
    evaluation_seed,
    generate_problem,
    is_correct,
    parse_answer,
    training_problem,
)
from segue.zoo.rows import PROBLEMS_PER_STEP_MAX

# No training run comes near this many steps; each draws its problems from a range of its own.
STEPS_MAX = (TRAINING_SEED_END - 1) // PROBLEMS_PER_STEP_MAX - 1


@given(
    step=st.integers(0, STEPS_MAX),
    seed=st.integers(0, 1_000_000),
    index=st.integers(0, EVALUATION_PROBLEMS_PER_SEED - 1),
)
def test_no_seed_serves_both_training_and_evaluation(step: int, seed: int, index: int) -> None:
    last_training = (step + 1) * PROBLEMS_PER_STEP_MAX - 1
    assert last_training + 1 < TRAINING_SEED_END < EVALUATION_SEED_START <= evaluation_seed(seed, index)


@given(first=st.integers(0, 1_000), second=st.integers(0, 1_000), index=st.integers(0, 999), other=st.integers(0, 999))
def test_two_evaluation_problems_never_share_a_seed(first: int, second: int, index: int, other: int) -> None:
    same = evaluation_seed(first, index) == evaluation_seed(second, other)
    assert same == ((first, index) == (second, other))


def test_training_refuses_the_seeds_of_evaluation() -> None:
    with pytest.raises(AssertionError):
        training_problem(EVALUATION_SEED_START)


@given(st.integers(0, 2_000_000_000))
def test_a_seed_always_gives_the_same_problem(seed: int) -> None:
    assert generate_problem(seed) == generate_problem(seed)


@given(st.integers(0, 2_000_000_000))
def test_the_worked_solution_ends_in_the_answer(seed: int) -> None:
    problem = generate_problem(seed)
    assert problem.question
    assert problem.solution.endswith(f"\n#### {problem.answer}")
    assert is_correct(problem, problem.solution)


def test_the_first_figure_does_not_follow_from_the_template() -> None:
    # Drawn from one generator, every problem of a template would have the same name in it.
    openings: dict[str, set[str]] = {}
    for index in range(1_000):
        first, *rest = evaluation_problem(0, index).question.split(" ")
        openings.setdefault(" ".join(rest[:3]), set()).add(first)
    assert max(len(names) for names in openings.values()) > 5


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("6 x 7 = 42\n#### 42", "42"),
        ("#### 1,234", "1234"),
        ("#### $12.50", "12.5"),
        ("#### 100.0", "100"),
        ("#### -3", "-3"),
        ("####7", "7"),
        ("#### 120", "120"),
        ("#### 1\nno, wait\n#### 2", "2"),
        ("#### 5.", "5"),
    ],
)
def test_the_answer_is_the_number_after_the_last_marker(text: str, answer: str) -> None:
    assert parse_answer(text) == answer


@pytest.mark.parametrize("text", ["", "42", "####", "#### none", "The answer is 42."])
def test_text_without_a_marked_number_has_no_answer(text: str) -> None:
    assert parse_answer(text) is None


def test_a_wrong_number_is_not_correct() -> None:
    problem = Problem("How many?", "2 + 2 = 4\n#### 4", "4")
    assert not is_correct(problem, "#### 40")
    assert not is_correct(problem, "4")


def test_examples_come_as_turns_before_the_question() -> None:
    problem, *examples = (evaluation_problem(3, index) for index in range(3))
    messages = chat_messages(problem, examples)
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    assert messages[1]["content"] == examples[0].solution
    assert messages[-1]["content"] == problem.question
