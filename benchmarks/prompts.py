"""The conversations that the benchmarks ask: evaluation problems, each with worked examples from another set."""

from pathlib import Path

from segue.zoo.problems import EVALUATION_PROBLEMS_PER_SEED, Message, Problem, chat_messages, evaluation_problem


def problem_messages(seed: int, index: int, shots: int) -> list[Message]:
    """Problem `index` of evaluation set `seed`; its `shots` examples come from the next set, other ones per problem."""
    return chat_messages(evaluation_problem(seed, index), _examples(seed, index, shots))


def problem_prompts(model: Path, seed: int, count: int, shots: int) -> list[list[int]]:
    """The first `count` of these as the token ids that the bundled model's chat template makes of them."""
    # Here, because it loads a tokenizer library that only this function needs.
    from segue.zoo.rows import Encoder

    encoder = Encoder(model)
    prompts = []
    for index in range(count):
        *examples, asked = encoder.encode([*_examples(seed, index, shots), evaluation_problem(seed, index)])
        turns = [token for example in examples for token in example.ids]
        prompts.append([encoder.begin, *turns, *asked.ids[: asked.question_count]])
    return prompts


def _examples(seed: int, index: int, shots: int) -> list[Problem]:
    first = index * shots
    return [evaluation_problem(seed + 1, (first + shot) % EVALUATION_PROBLEMS_PER_SEED) for shot in range(shots)]
