"""Grade-school arithmetic problems with worked solutions, each a pure function of its seed; knows nothing of tensors.

Text and figures come from reasoning-gym's `gsm_symbolic` templates. Training, evaluation and the benchmarks
all draw from here, from ranges of seeds that do not meet.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Literal, TypedDict, cast

from reasoning_gym.arithmetic.gsm_symbolic.gsm_symbolic import (
    GSMSymbolicDataset,
    GSMSymbolicDatasetConfig,
    tasks_ok,
)

TRAINING_SEED_END = 1_000_000_000
EVALUATION_SEED_START = 1_500_000_000
EVALUATION_PROBLEMS_PER_SEED = 1_000
DIFFICULTY = 1.0  # the only one the templates define

_ANSWER = re.compile(r"####\s*[$€£]?\s*(-?[\d,]*\d(?:\.\d+)?)")

Template = Callable[[Random, float], dict[str, object]]


class Message(TypedDict):
    """One turn of a conversation, as the chat completions API takes it."""

    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    question: str
    solution: str  # the worked steps; its last line is `#### answer`
    answer: str


@cache
def _templates() -> dict[int, Template]:
    dataset = GSMSymbolicDataset(GSMSymbolicDatasetConfig(seed=0, size=1))
    return cast(dict[int, Template], dataset.generators)


def generate_problem(seed: int) -> Problem:
    """The problem of this seed: the same text on every machine.

    Template and figures come from two generators: drawn from one, the first figure would follow from the template.
    """
    template = Random(seed).choices(tasks_ok, k=2)[1]
    example = _templates()[template](Random(seed + 1), DIFFICULTY)
    metadata = cast(dict[str, object], example["metadata"])
    answer = normalise_answer(str(example["answer"]))
    # Some templates end in `#### 100.0` where the answer is 100: one spelling everywhere.
    steps, marker, _ = str(metadata["answer_cot"]).rpartition("####")
    assert marker == "####"
    return Problem(str(example["question"]).strip(), f"{steps.strip()}\n#### {answer}", answer)


def training_problem(number: int) -> Problem:
    assert 0 <= number < TRAINING_SEED_END - 1  # the problem's own seed and the next are both used
    return generate_problem(number)


def evaluation_seed(seed: int, index: int) -> int:
    assert seed >= 0
    assert 0 <= index < EVALUATION_PROBLEMS_PER_SEED
    return EVALUATION_SEED_START + EVALUATION_PROBLEMS_PER_SEED * seed + index


def evaluation_problem(seed: int, index: int) -> Problem:
    """Problem `index` of evaluation set `seed`; never one that training drew from."""
    return generate_problem(evaluation_seed(seed, index))


def normalise_answer(text: str) -> str:
    """One spelling per number: no thousands separators, no trailing zeros of a fraction."""
    number = text.strip().replace(",", "")
    return number.rstrip("0").rstrip(".") if "." in number else number


def parse_answer(text: str) -> str | None:
    """The number after the last `####`, normalised; None where the text gives none."""
    found = _ANSWER.findall(text)
    return normalise_answer(found[-1]) if found else None


def is_correct(problem: Problem, text: str) -> bool:
    return parse_answer(text) == problem.answer


def chat_messages(problem: Problem, examples: Sequence[Problem]) -> list[Message]:
    """The conversation that asks for `problem`, with each example as a user turn and its worked solution."""
    messages: list[Message] = []
    for example in examples:
        messages.append({"role": "user", "content": example.question})
        messages.append({"role": "assistant", "content": example.solution})
    messages.append({"role": "user", "content": problem.question})
    return messages
