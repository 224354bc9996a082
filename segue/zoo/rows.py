"""Training rows: conversations of whole problems, packed to a fixed length; a pure function of the step's number.

Knows nothing of tensors: arrays only, made by worker processes ahead of the training loop.
"""

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from segue.zoo.problems import Problem, training_problem
from segue.zoo.tokenizer import ASSISTANT, BEGIN, END, USER, token_id

TOKENS_PER_STEP = 65_536
ROW_LENGTHS = (512, 2_048, 4_096)
# Short rows are where a question comes first, with no example before it; long ones hold up to forty examples.
ROW_LENGTH_WEIGHTS = (0.5, 0.38, 0.12)
PROBLEMS_PER_STEP_MAX = 2_000
LOOKAHEAD_PROBLEMS = 24
STEPS_AHEAD_PER_WORKER = 4

# What a position's target belongs to, which decides its weight in the loss.
NOTHING, QUESTION, SOLUTION = 0, 1, 2

Ids = NDArray[np.int16]


@dataclass(frozen=True, slots=True)
class StepRows:
    """One step's rows end to end; arrays of [TOKENS_PER_STEP]."""

    row_length: int
    tokens: Ids
    targets: Ids
    kinds: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class EncodedProblem:
    ids: list[int]
    question_count: int  # how many of the ids come before the solution


class Encoder:
    """Encodes problems as turns of a conversation, token for token as the chat template does."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.begin, self._user, self._assistant, self._end = (
            token_id(self._tokenizer, token) for token in (BEGIN, USER, ASSISTANT, END)
        )

    def encode(self, problems: list[Problem]) -> list[EncodedProblem]:
        texts = [text for problem in problems for text in (problem.question, problem.solution)]
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]
        return [
            EncodedProblem([self._user, *question, self._end, self._assistant, *solution, self._end], len(question) + 3)
            for question, solution in zip(ids[::2], ids[1::2], strict=True)
        ]


def row_length(step: int) -> int:
    return Random(step).choices(ROW_LENGTHS, ROW_LENGTH_WEIGHTS)[0]


def make_step_rows(encoder: Encoder, step: int, token_count: int = TOKENS_PER_STEP) -> StepRows:
    """The rows of training step `step`, from that step's own problems."""
    length = row_length(step)
    pending = _problems_of(encoder, step)
    row_count = token_count // length
    tokens = np.zeros((row_count, length + 1), np.int16)
    kinds = np.zeros((row_count, length + 1), np.uint8)
    waiting: deque[EncodedProblem] = deque()
    for row in range(row_count):
        tokens[row, 0] = encoder.begin
        filled = 1
        while (problem := _take_fitting(waiting, pending, length + 1 - filled)) is not None:
            end = filled + len(problem.ids)
            tokens[row, filled:end] = problem.ids
            kinds[row, filled : filled + problem.question_count] = QUESTION
            kinds[row, filled + problem.question_count : end] = SOLUTION
            filled = end
    # A position is scored by the token after it.
    return StepRows(length, tokens[:, :-1].ravel(), tokens[:, 1:].ravel(), kinds[:, 1:].ravel())


def _problems_of(encoder: Encoder, step: int) -> Iterator[EncodedProblem]:
    first = step * PROBLEMS_PER_STEP_MAX
    for number in range(first, first + PROBLEMS_PER_STEP_MAX, 100):
        yield from encoder.encode([training_problem(n) for n in range(number, number + 100)])
    raise AssertionError("a step needs more problems than it owns")


def _take_fitting(
    waiting: deque[EncodedProblem], pending: Iterator[EncodedProblem], room: int
) -> EncodedProblem | None:
    """The first problem in line that fits; a row ends when none of those in sight does."""
    while len(waiting) < LOOKAHEAD_PROBLEMS:
        waiting.append(next(pending))
    for position, problem in enumerate(waiting):
        if len(problem.ids) <= room:
            del waiting[position]
            return problem
    return None


@cache
def _worker_encoder(folder: Path) -> Encoder:
    return Encoder(folder)


def _make_in_worker(folder: Path, step: int) -> StepRows:
    return make_step_rows(_worker_encoder(folder), step)


class RowStream:
    """Yields the steps' rows in order, made ahead by worker processes; owns those processes."""

    def __init__(self, folder: Path, first_step: int, worker_count: int) -> None:
        self._folder = folder
        self._next_step = first_step
        self._pool = ProcessPoolExecutor(worker_count, multiprocessing.get_context("spawn"))
        self._futures: deque[Future[StepRows]] = deque()
        for _ in range(worker_count * STEPS_AHEAD_PER_WORKER):
            self._submit()

    def next(self) -> StepRows:
        self._submit()
        return self._futures.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self) -> None:
        self._futures.append(self._pool.submit(_make_in_worker, self._folder, self._next_step))
        self._next_step += 1
