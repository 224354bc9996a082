"""Training rows hold whole problems in the chat template's form, and score what they should."""

from collections.abc import Iterator

import numpy as np
import pytest
from jinja2 import Environment
from numpy.typing import NDArray
from tokenizers import Tokenizer

from segue.zoo.bundle import BUNDLED_MODEL
from segue.zoo.problems import Message, Problem, training_problem
from segue.zoo.rows import (
    NOTHING,
    PROBLEMS_PER_STEP_MAX,
    QUESTION,
    SOLUTION,
    Encoder,
    Ids,
    RowStream,
    StepRows,
    make_step_rows,
    row_length,
)
from segue.zoo.tokenizer import BEGIN, CHAT_TEMPLATE, END, token_id

TOKEN_COUNT = 8_192


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(BUNDLED_MODEL)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))


def conversation(problems: list[Problem]) -> list[Message]:
    messages: list[Message] = []
    for problem in problems:
        messages.append({"role": "user", "content": problem.question})
        messages.append({"role": "assistant", "content": problem.solution})
    return messages


def test_problems_are_encoded_token_for_token_as_the_chat_template_writes_them(
    encoder: Encoder, tokenizer: Tokenizer
) -> None:
    problems = [training_problem(number) for number in range(40)]
    text = (
        Environment()
        .from_string(CHAT_TEMPLATE)
        .render(messages=conversation(problems), bos_token=BEGIN, eos_token=END, add_generation_prompt=False)
    )
    row = [encoder.begin, *(token for problem in encoder.encode(problems) for token in problem.ids)]
    assert row == tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("step", range(6))
def test_a_row_is_whole_problems_and_then_nothing(encoder: Encoder, tokenizer: Tokenizer, step: int) -> None:
    rows = make_step_rows(encoder, step, TOKEN_COUNT)
    end_id = token_id(tokenizer, END)
    own = range(step * PROBLEMS_PER_STEP_MAX, (step + 1) * PROBLEMS_PER_STEP_MAX)
    known = {tuple(problem.ids) for problem in encoder.encode([training_problem(number) for number in own[:400]])}
    for tokens, targets, kinds in by_row(rows):
        assert tokens[0] == encoder.begin
        scored = int((kinds != NOTHING).sum())
        assert (kinds[:scored] != NOTHING).all()
        assert scored > 0.75 * rows.row_length
        ends = [position for position in range(scored) if targets[position] == end_id][1::2]
        assert ends[-1] == scored - 1
        starts = [0, *(end + 1 for end in ends[:-1])]
        assert all(tuple(targets[a : b + 1].tolist()) in known for a, b in zip(starts, ends, strict=True))


def test_targets_are_the_next_tokens_and_solutions_are_told_from_questions(encoder: Encoder) -> None:
    rows = make_step_rows(encoder, 0, TOKEN_COUNT)
    tokens, targets, kinds = next(by_row(rows))
    assert (targets[:-1] == tokens[1:]).all()
    (first,) = encoder.encode([training_problem(0)])
    expected = [QUESTION] * first.question_count + [SOLUTION] * (len(first.ids) - first.question_count)
    assert kinds[: len(first.ids)].tolist() == expected


@pytest.mark.slow
def test_worker_processes_give_the_same_rows_in_order(encoder: Encoder) -> None:
    stream = RowStream(BUNDLED_MODEL, first_step=5, worker_count=2)
    try:
        for step in (5, 6, 7):
            rows, expected = stream.next(), make_step_rows(encoder, step)
            assert rows.row_length == expected.row_length == row_length(step)
            assert np.array_equal(rows.tokens, expected.tokens)
            assert np.array_equal(rows.kinds, expected.kinds)
    finally:
        stream.close()


def by_row(rows: StepRows) -> Iterator[tuple[Ids, Ids, NDArray[np.uint8]]]:
    shape = (-1, rows.row_length)
    return zip(rows.tokens.reshape(shape), rows.targets.reshape(shape), rows.kinds.reshape(shape), strict=True)
