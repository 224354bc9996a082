"""Right answers to generated grade-school problems over HTTP, greedy: what a user would see of lost or wrong state."""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.prompts import problem_messages
from benchmarks.refusal import Refused
from benchmarks.retraction_figures import retraction_figures
from benchmarks.separated import PATIENT, check_handoffs, separated, together
from benchmarks.server import add_server_arguments, model_name
from benchmarks.streaming import Answer, ask
from segue.state.spec import ComponentName
from segue.zoo.problems import evaluation_problem, parse_answer

NAME = "accuracy"
SUMMARY = "share of generated problems answered right over HTTP (greedy), unparseable answers, tokens/s"
OUTPUT_TOKENS_MAX = 512
NEAR_TIE = 1e-3
"""Difference of two logprobs below which other orders of the same sums may turn the choice."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument(
        "--role", choices=("both", "separated"), default="both", help="one worker in role both, or a pair"
    )
    parser.add_argument("--transport", choices=("nixl", "grpc", "local"), default="nixl", help="for --role separated")
    parser.add_argument(
        "--retract-interval", type=int, metavar="K", help="take a request off the device on every K-th decode step"
    )
    parser.add_argument(
        "--drop", choices=[name.value for name in ComponentName], help="for tests: comes back zero-filled from there"
    )
    parser.add_argument("--kv-dtype", choices=("fp8",), help="how keys and values are stored (default: as computed)")
    parser.add_argument(
        "--replay-length", type=int, metavar="L", help="write recurrent layers' matrix states every L steps only"
    )
    parser.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks of each worker")
    parser.add_argument("--prefill-tp", type=int, metavar="P", help="of the prefill worker")
    parser.add_argument("--decode-tp", type=int, metavar="D", help="of the decode worker")
    parser.add_argument(
        "--threads", type=int, help="of each worker (default: 1 of a pair's, else as many as there are)"
    )
    parser.add_argument("--problems", type=int, default=200)
    parser.add_argument("--shots", type=int, default=0, help="worked examples before each problem")
    parser.add_argument("--seed", type=int, default=0, help="which evaluation set")
    parser.add_argument("--concurrency", type=int, default=16, help="requests at the same time")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the answers to FILE")
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="count the answers whose text, or whose logprobs, differ from FILE's",
    )


def run(args: argparse.Namespace) -> dict[str, object]:
    with _serving(args) as url:
        started_s = time.perf_counter()
        answers = asyncio.run(
            solve(url, seed=args.seed, problems=args.problems, shots=args.shots, concurrency=args.concurrency)
        )
        elapsed_s = time.perf_counter() - started_s
        retraction = retraction_figures(url) if args.retract_interval else {}
    texts = [answer.text for answer in answers]
    right, given = results(texts, args.seed)
    tokens = sum(answer.output_tokens for answer in answers)
    figures: dict[str, object] = {
        "accuracy": sum(one == answer for one, answer in zip(given, right, strict=True)) / args.problems,
        "invalid": sum(one is None for one in given) / args.problems,
        "tokens_per_s": round(tokens / elapsed_s, 1),
        "output_tokens": tokens,
        "elapsed_s": round(elapsed_s, 2),
    }
    figures |= retraction
    saved: dict[str, list[Any]] = {
        "texts": texts,
        "logprobs": [list(answer.logprobs) for answer in answers],
        "tokens": [list(answer.tokens) for answer in answers],
        "leads": [list(answer.leads) for answer in answers],
    }
    if args.save is not None:
        args.save.write_text(json.dumps(saved) + "\n")
    if args.compare is not None:
        others = json.loads(args.compare.read_text())
        figures["differing_answers"] = count_differing(texts, others["texts"])
        figures["differing_logprobs"] = count_differing(saved["logprobs"], others["logprobs"])
        figures["unexplained_answers"] = count_unexplained(saved["tokens"], others["tokens"], others["leads"])
    return figures


@contextmanager
def _serving(args: argparse.Namespace) -> Iterator[str]:
    if args.url:
        chosen = {"role": args.role != "both"} | {
            name: getattr(args, name)
            for name in (
                "model",
                "deterministic",
                "retract_interval",
                "drop",
                "kv_dtype",
                "replay_length",
                "tp",
                "prefill_tp",
                "decode_tp",
            )
        }
        if ignored := [f"--{name.replace('_', '-')}" for name, given in chosen.items() if given]:
            raise Refused(f"{', '.join(ignored)} cannot change the server at {args.url}: it was started by another")
        yield args.url.rstrip("/")
        return
    settings = [*PATIENT, *([f"engine.model={args.model}"] if args.model else [])]
    settings += ["engine.deterministic=true"] if args.deterministic else []
    settings += [f"engine.kv_dtype={args.kv_dtype}"] if args.kv_dtype else []
    settings += [f"engine.replay_length={args.replay_length}"] if args.replay_length else []
    degrees = {"engine": args.tp, "prefill": args.prefill_tp, "decode": args.decode_tp}
    settings += [f"{part}.tp={degree}" for part, degree in degrees.items() if degree]
    if args.retract_interval:
        settings += [f"retraction.test_interval={args.retract_interval}"]
        settings += [f"retraction.test_drop={args.drop}"] if args.drop else ["retraction.verify=true"]
    elif args.drop:
        raise Refused("--drop needs --retract-interval: nothing is dropped of who stays on the device")
    if args.role == "both":
        with together([*settings, f"engine.threads={args.threads or 0}"]) as url:
            yield url
        return
    settings += ["transfer.verify=true", f"engine.threads={args.threads or 1}"]
    with separated(args.transport, settings) as url:
        yield url
        check_handoffs(url)


def results(texts: Sequence[str], seed: int) -> tuple[list[str], list[str | None]]:
    """The right results of so many problems, and those that the answers give."""
    right = [evaluation_problem(seed, index).answer for index in range(len(texts))]
    return right, [parse_answer(text) for text in texts]


async def solve(url: str, *, seed: int, problems: int, shots: int, concurrency: int) -> list[Answer]:
    """The greedy answers to so many problems, a few at a time, with their logprobs."""
    model = model_name(url)
    turns = asyncio.Semaphore(concurrency)

    async def answer(index: int) -> Answer:
        body: dict[str, object] = {
            "model": model,
            "messages": problem_messages(seed, index, shots),
            "temperature": 0,
            "logprobs": True,
            "top_logprobs": 2,
            "max_tokens": OUTPUT_TOKENS_MAX,
        }
        async with turns:
            return await ask(url, "/v1/chat/completions", body)

    return await asyncio.gather(*(answer(index) for index in range(problems)))


def count_unexplained(
    ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]], leads: Sequence[Sequence[float]]
) -> int:
    """How many answers differ from a saved run's first where that had not two tokens about as likely (NEAR_TIE)."""
    unexplained = 0
    for one, other, lead in zip(ours, theirs, leads, strict=True):
        if one == other:
            continue
        first = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        unexplained += first is None or lead[first] >= NEAR_TIE
    return unexplained


def count_differing(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """How many answers are not those of a saved run to the letter, or their tokens' logprobs not to the bit."""
    if len(theirs) != len(ours):
        raise Refused(f"the saved run has {len(theirs)} answers, this one has {len(ours)}")
    return sum(one != other for one, other in zip(ours, theirs, strict=True))
