"""Latency and throughput over HTTP as clients are added, each asking one problem after another."""

import argparse
import asyncio
import time
from collections.abc import Sequence

from benchmarks.prompts import problem_messages
from benchmarks.quantiles import milliseconds
from benchmarks.refusal import Refused
from benchmarks.server import add_server_arguments, model_name, serving
from benchmarks.streaming import Answer, ask

NAME = "serve"
SUMMARY = "TTFT, inter-token latency and tokens/s over HTTP streaming at 1, 8 and 32 clients"

# Without deterministic mode a batch may turn a near-tie the other way; more than this many answers is no near-tie.
DIFFERING_MAX = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32], help="how many clients at a time")
    parser.add_argument("--requests", type=int, default=4, help="requests of each client")
    parser.add_argument("--output", type=int, default=128, help="tokens of each answer")
    parser.add_argument("--shots", type=int, default=1, help="worked examples in each prompt")
    parser.add_argument("--seed", type=int, default=0, help="which evaluation set")


def run(args: argparse.Namespace) -> dict[str, object]:
    figures: dict[str, object] = {}
    with serving(args) as url:
        bodies = _bodies(url, args)
        asyncio.run(_load(url, bodies[:1], 1))  # the first request of a server warms it
        seen: dict[int, str] = {}
        for clients in args.clients:
            # Each number of clients finds none of the others' prompts cached.
            salt = {"cache_salt": f"{clients} clients"}
            wanted = [{**body, **salt} for body in bodies[: clients * args.requests]]
            started_s = time.perf_counter()
            answers = asyncio.run(_load(url, wanted, clients))
            elapsed_s = time.perf_counter() - started_s
            check_answers(answers, seen, args.output)
            figures[f"clients_{clients}"] = _figures(answers, elapsed_s)
    return figures


def _bodies(url: str, args: argparse.Namespace) -> list[dict[str, object]]:
    common = {"model": model_name(url), "temperature": 0, "max_tokens": args.output, "ignore_eos": True}
    count = max(args.clients) * args.requests
    return [{**common, "messages": problem_messages(args.seed, index, args.shots)} for index in range(count)]


async def _load(url: str, bodies: Sequence[dict[str, object]], clients: int) -> list[Answer]:
    """Each client asks every `clients`-th body, one after another. Answers are in the order of `bodies`."""
    answers: dict[int, Answer] = {}

    async def client(first: int) -> None:
        for index in range(first, len(bodies), clients):
            answers[index] = await ask(url, "/v1/chat/completions", bodies[index])

    await asyncio.gather(*(client(first) for first in range(clients)))
    return [answers[index] for index in range(len(bodies))]


def check_answers(answers: Sequence[Answer], seen: dict[int, str], output: int) -> None:
    """Raises Refused unless every answer has `output` tokens and says what it said when fewer clients asked.

    `seen` holds the answers of earlier rounds by index, and learns new ones.
    """
    short = [answer.output_tokens for answer in answers if answer.output_tokens != output]
    if short:
        raise Refused(f"{len(short)} answers have not {output} tokens but {sorted(set(short))}")
    differing = sum(seen.setdefault(index, answer.text) != answer.text for index, answer in enumerate(answers))
    if differing > DIFFERING_MAX * len(answers):
        raise Refused(f"{differing} of {len(answers)} answers changed when more clients asked")


def _figures(answers: Sequence[Answer], elapsed_s: float) -> dict[str, float]:
    first = [answer.first_chunk_s for answer in answers]
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    return {
        "ttft_ms_p50": milliseconds(first, 0.5),
        "ttft_ms_p99": milliseconds(first, 0.99),
        "itl_ms_p50": milliseconds(gaps, 0.5),
        "itl_ms_p99": milliseconds(gaps, 0.99),
        "tokens_per_s": round(sum(answer.output_tokens for answer in answers) / elapsed_s, 1),
    }
