"""Scores parameters on evaluation problems by greedy decoding: how many answers are right, how many are no answer."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from segue.zoo.architecture import Architecture
from segue.zoo.parameters import named_views
from segue.zoo.problems import evaluation_problem, is_correct, parse_answer
from segue.zoo.rows import Encoder
from segue.zoo.step_decode import generate_greedy
from segue.zoo.tokenizer import ASSISTANT, END, token_id

NEW_TOKENS_MAX = 320


@dataclass(frozen=True, slots=True)
class Score:
    problem_count: int
    example_count: int
    accuracy: float
    invalid: float
    seconds: float


def score(arch: Architecture, flat: Tensor, folder: Path, seed: int, problem_count: int, example_count: int) -> Score:
    """Score as the exported model would: weights rounded to bf16, computed in fp32. The examples of problem i are
    the evaluation problems after the scored ones, another set for each problem."""
    started = time.monotonic()
    encoder = Encoder(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assistant_id, end_id = token_id(tokenizer, ASSISTANT), token_id(tokenizer, END)
    problems = [evaluation_problem(seed, index) for index in range(problem_count)]
    example_pool = [evaluation_problem(seed + 1, index) for index in range(1000)]
    prompts = []
    for index, problem in enumerate(problems):
        examples = [example_pool[(index * example_count + k) % len(example_pool)] for k in range(example_count)]
        *shots, asked = encoder.encode([*examples, problem])
        question = asked.ids[: asked.question_count]
        assert question[-1] == assistant_id
        prompts.append([encoder.begin, *(token for shot in shots for token in shot.ids), *question])
    weights = named_views(arch, flat.bfloat16().float())
    torch.set_float32_matmul_precision("highest")
    answers = [tokenizer.decode(ids) for ids in generate_greedy(arch, weights, prompts, NEW_TOKENS_MAX, end_id)]
    right = sum(is_correct(problem, text) for problem, text in zip(problems, answers, strict=True))
    invalid = sum(parse_answer(text) is None for text in answers)
    return Score(
        problem_count,
        example_count,
        right / problem_count,
        invalid / problem_count,
        time.monotonic() - started,
    )
