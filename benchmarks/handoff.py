"""What handing a request over costs its client: time to first token apart and together, by length of the prompt.

Both deployments run at once and are asked in turns, one request at a time, so that the machine's moods hit both alike.
"""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import segue.zoo
from benchmarks.prompts import problem_prompts
from benchmarks.refusal import Refused
from benchmarks.separated import check_handoffs, separated, together
from benchmarks.server import model_name
from benchmarks.streaming import Answer, ask

NAME = "handoff"
SUMMARY = "share of the time to first token that prefill and decode apart add, by prompt length and transport"
LENGTHS = (128, 512, 1024, 2048, 4000)
# Enough examples for the longest prompt.
SHOTS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--transports", nargs="+", choices=("nixl", "grpc", "local"), default=["nixl", "grpc"])
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS), help="prompt lengths in tokens")
    parser.add_argument("--repeats", type=int, default=5, help="requests of each kind and length")


def run(args: argparse.Namespace) -> dict[str, object]:
    settings = ["engine.threads=1", "engine.max_running=4"]
    with ExitStack() as stack:
        urls = {"both": stack.enter_context(together(settings))}
        for transport in args.transports:
            urls[transport] = stack.enter_context(separated(transport, settings))
        measured = asyncio.run(_measure(urls, args.lengths, args.repeats))
        for transport in args.transports:
            check_handoffs(urls[transport])
    return {f"prompt_{length}": _figures(measured[length]) for length in args.lengths}


async def _measure(urls: dict[str, str], lengths: Sequence[int], repeats: int) -> dict[int, dict[str, list[float]]]:
    """Times to first token in seconds, by prompt length and deployment. The first request of each kind warms it."""
    model = model_name(urls["both"])
    folder = Path(segue.zoo.__path__[0]) / "model"
    source = [token for prompt in problem_prompts(folder, 0, 1, SHOTS) for token in prompt]
    measured: dict[int, dict[str, list[float]]] = {}
    for length in lengths:
        if length > len(source):
            raise Refused(f"there is no prompt of {length} tokens")
        body: dict[str, object] = {
            "model": model,
            "prompt": source[:length],
            "temperature": 0,
            "max_tokens": 8,
            "ignore_eos": True,
        }
        times: dict[str, list[float]] = {name: [] for name in urls}
        for turn in range(repeats + 1):
            # A prompt that is cached would cost nothing to compute, and little to hand over.
            fresh = {**body, "cache_salt": f"{length} tokens, turn {turn}"}
            answers = {name: await ask(url, "/v1/completions", fresh) for name, url in urls.items()}
            _check(answers, length)
            if turn:
                for name, answer in answers.items():
                    times[name].append(answer.first_chunk_s)
        measured[length] = times
    return measured


def _check(answers: dict[str, Answer], length: int) -> None:
    texts = {answer.text for answer in answers.values()}
    if len(texts) != 1:
        raise Refused(f"a prompt of {length} tokens is answered differently: {texts}")
    if any(answer.prompt_tokens != length for answer in answers.values()):
        raise Refused(f"a prompt of {length} tokens is counted otherwise")
    if any(answer.cached_tokens for answer in answers.values()):
        raise Refused(f"a prompt of {length} tokens was cached")


def _figures(times: dict[str, list[float]]) -> dict[str, float]:
    both_s = statistics.median(times["both"])
    figures = {"both_ttft_ms": round(both_s * 1e3, 2)}
    for name, own in times.items():
        if name != "both":
            apart_s = statistics.median(own)
            figures[f"{name}_ttft_ms"] = round(apart_s * 1e3, 2)
            figures[f"{name}_added_share"] = round(1 - both_s / apart_s, 4)
    return figures
