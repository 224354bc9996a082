"""What HTTP, router, wire and scheduler cost: streams over HTTP against the bare runner, turn by turn in one run."""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.bare_runner import BareRunner
from benchmarks.prompts import problem_messages
from benchmarks.refusal import Refused
from benchmarks.server import add_server_arguments, model_name, serving
from benchmarks.streaming import Answer, ask
from deploy.settings import bundled_model
from router.text.tokenizer import Tokenizer
from segue.models.options import BuildOptions
from segue.weights.load import load_model

NAME = "overhead"
SUMMARY = "share of tokens/s that HTTP, router, wire and scheduler cost at 16 streams, against the bare runner"

# The two sides batch prompts differently, which may turn a near-tie; more than this share of outputs is no near-tie.
DIFFERING_MAX = 0.15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt")
    parser.add_argument("--output", type=int, default=128, help="tokens of each output")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side; the median counts")


def run(args: argparse.Namespace) -> dict[str, object]:
    folder = Path(args.model) if args.model else bundled_model()
    tokenizer = Tokenizer.from_folder(folder)
    prompts = [_prompt(tokenizer, index, args.prompt) for index in range(args.streams)]
    model = load_model(folder, BuildOptions(deterministic=args.deterministic))
    bare = BareRunner(model, batch=args.streams, length=args.prompt + args.output)
    tokens = args.streams * args.output
    bare_rates: list[float] = []
    served_rates: list[float] = []
    with serving(args) as url:
        name = model_name(url)
        bare.generate(prompts, 2)
        asyncio.run(_ask_all(url, name, prompts, 2, "warm"))
        for turn in range(args.rounds):
            started_s = time.perf_counter()
            outputs = bare.generate(prompts, args.output)
            turned_s = time.perf_counter()
            answers = asyncio.run(_ask_all(url, name, prompts, args.output, f"turn {turn}"))
            bare_rates.append(tokens / (turned_s - started_s))
            served_rates.append(tokens / (time.perf_counter() - turned_s))
            _check([tokenizer.decode(output, skip_special_tokens=False) for output in outputs], answers, args.output)
    costs = [1 - served / alone for served, alone in zip(served_rates, bare_rates, strict=True)]
    return {
        "added_cost": round(median(costs), 4),
        "added_cost_rounds": [round(cost, 4) for cost in costs],
        "bare_tokens_per_s": round(median(bare_rates), 1),
        "served_tokens_per_s": round(median(served_rates), 1),
    }


def _prompt(tokenizer: Tokenizer, index: int, length: int) -> list[int]:
    """The last `length` tokens of a conversation long enough, so that each stream has a prompt of its own."""
    for shots in range(1, 64):
        tokens = tokenizer.apply_chat_template(problem_messages(0, index, shots))
        if len(tokens) >= length:
            return tokens[-length:]
    raise Refused(f"no conversation has {length} tokens")


async def _ask_all(url: str, model: str, prompts: Sequence[Sequence[int]], output: int, salt: str) -> list[Answer]:
    common: dict[str, object] = {"model": model, "max_tokens": output, "temperature": 0, "ignore_eos": True}
    # The bare runner computes every prompt afresh, and so must the server.
    common |= {"cache_salt": salt}
    bodies = [{**common, "prompt": list(prompt), "skip_special_tokens": False} for prompt in prompts]
    return await asyncio.gather(*(ask(url, "/v1/completions", body) for body in bodies))


def _check(texts: Sequence[str], answers: Sequence[Answer], output: int) -> None:
    """The served outputs are as long as the bare ones and say the same."""
    if any(answer.output_tokens != output for answer in answers):
        raise Refused(f"the server ended outputs early: {[answer.output_tokens for answer in answers]}")
    if any(answer.cached_tokens for answer in answers):
        raise Refused("the server had prompts cached, the bare runner has not")
    differing = sum(answer.text != text for answer, text in zip(answers, texts, strict=True))
    if differing > DIFFERING_MAX * len(texts):
        raise Refused(f"{differing} of {len(texts)} served outputs differ from the bare runner's")
