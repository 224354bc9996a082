"""The conversations that the benchmarks ask: evaluation problems, each with worked examples from another set."""

from segue.zoo.problems import EVALUATION_PROBLEMS_PER_SEED, Message, chat_messages, evaluation_problem


def problem_messages(seed: int, index: int, shots: int) -> list[Message]:
    """Problem `index` of evaluation set `seed`; its `shots` examples come from the next set, other ones per problem."""
    first = index * shots
    examples = [evaluation_problem(seed + 1, (first + shot) % EVALUATION_PROBLEMS_PER_SEED) for shot in range(shots)]
    return chat_messages(evaluation_problem(seed, index), examples)
