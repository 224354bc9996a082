"""What the second turn of a conversation finds of the first: prompt region, decode region, and the same answers.

All conversations run at once, in deterministic mode, over a small random model of all three traits.
"""

import argparse
import asyncio
import math
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.conversations import Conversations, Output, attached
from benchmarks.direct import status_of
from benchmarks.hosted import hosted
from benchmarks.random_model import VOCABULARY, write_checkpoint
from benchmarks.refusal import Refused
from segue.batch.limits import KERNEL_CHUNK
from segue.config import EngineConfig

NAME = "reuse"
SUMMARY = "second turns resumed in what the first ones decoded, and what the retention floor has to do with it"

HIDDEN = 32
CHUNK_TOKENS = 512
LENGTHS_APART = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--page", type=int, default=64, help="tokens of a page")
    parser.add_argument("--interval", type=int, default=256, help="tokens between two decode checkpoints")
    parser.add_argument("--prompts", type=int, default=32, help="conversations, all at once")
    parser.add_argument("--window", type=int, default=511, help="past keys that the sliding layer sees")
    parser.add_argument("--floor", choices=("on", "off"), default="on", help="retain the window below a checkpoint")
    parser.add_argument("--role", choices=("both", "separated"), default="both", help="prefill and decode apart or not")
    parser.add_argument("--prompt", type=int, default=3_000, help="tokens of the first turn, about")
    parser.add_argument("--output", type=int, default=1_024, help="tokens of the first answer")
    parser.add_argument("--turn", type=int, default=64, help="tokens that the second turn adds, and of its answer")
    parser.add_argument("--state-mib", type=int, default=256, help="memory for the state of all conversations")


def run(args: argparse.Namespace) -> dict[str, object]:
    longest = args.prompt + LENGTHS_APART // 2 + args.output + 2 * args.turn
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder), window=args.window, max_len=longest, hidden=HIDDEN)
        engine = EngineConfig(
            model=model,
            name="random",
            deterministic=True,
            # A token at a time is so little work that a second thread costs more than it brings.
            threads=1,
            page_tokens=args.page,
            track_interval=args.interval,
            retain_window=args.floor == "on",
            state_bytes=args.state_mib << 20,
            # A conversation and the question whether it could be resumed.
            max_running=2 * args.prompts,
            max_len=longest,
            chunk_tokens=CHUNK_TOKENS,
            # Every prompt gets its chunk in every step: all decode at once.
            step_tokens=CHUNK_TOKENS * 2 * args.prompts,
        )
        return asyncio.run(_measure(engine, args))


async def _measure(engine: EngineConfig, args: argparse.Namespace) -> dict[str, object]:
    draw = random.Random(0)
    lengths = [args.prompt + draw.randint(-LENGTHS_APART // 2, LENGTHS_APART // 2) for _ in range(args.prompts)]
    first = [_tokens(draw, length) for length in lengths]
    separated = args.role == "separated"
    started_s = time.perf_counter()
    async with (
        hosted(engine, separated=separated, extend_tokens=2 * (args.interval + args.turn)) as workers,
        attached(workers.address) as conversations,
    ):
        grid = math.lcm(args.page, KERNEL_CHUNK)
        answers, resumable = await _first_turn(conversations, first, args.output, workers.prefill, grid)
        cache = (await status_of(workers.address)).cache
        one_s = time.perf_counter()
        second = [
            [*prompt, *answer.tokens, *_tokens(draw, args.turn)] for prompt, answer in zip(first, answers, strict=True)
        ]
        warm = await _all(conversations, second, args.turn, workers.prefill)
        two_s = time.perf_counter()
    async with (
        hosted(replace(engine, prefix_cache=False), separated=False) as workers,
        attached(workers.address) as conversations,
    ):
        cold = await _all(conversations, second, args.turn, "")
    if any(answer.cached_tokens for answer in cold):
        raise Refused("the run without a cache has reused something")
    if any(len(answer.tokens) != args.output for answer in answers):
        raise Refused("a first answer has not all of its tokens")
    depths = [answer.cached_tokens for answer in warm]
    known = sum(len(prompt) + args.output for prompt in first)
    return {
        "reused_prompts": sum(depth > len(prompt) for prompt, depth in zip(first, depths, strict=True)),
        "reused_tokens": sum(depths),
        "recomputed_tokens": known - sum(depths),
        "prompt_region_reused": resumable,
        "kl_nonzero": sum(differ(one, other) for one, other in zip(warm, cold, strict=True)),
        "floor_tokens_mean": round(cache.floor_tokens_mean, 1),
        "floor_tokens_max": cache.floor_tokens_max,
        "checkpoints_evicted": cache.checkpoints_evicted,
        "checkpoints_skipped": cache.checkpoints_skipped,
        "floors_dropped": cache.floors_dropped,
        "prompt_and_resumed_tokens": [[len(prompt), depth] for prompt, depth in zip(first, depths, strict=True)],
        "turn_one_s": round(one_s - started_s, 1),
        "turn_two_s": round(two_s - one_s, 1),
    }


async def _first_turn(
    conversations: Conversations, prompts: Sequence[Sequence[int]], output: int, prefill: str, grid: int
) -> tuple[list[Output], int]:
    """All answers, and how many prompts could be resumed at their deepest grid point after their first decode step."""

    async def converse(prompt: Sequence[int]) -> tuple[Output, bool]:
        running = await conversations.begin(prompt, output, prefill=prefill)
        await running.decoding.wait()
        # Not through the prefill worker: what that has cached is not the question.
        probe = await conversations.end(await conversations.begin([*prompt, running.tokens[0]], 1))
        return await conversations.end(running), probe.cached_tokens >= (len(prompt) - 1) // grid * grid

    found = await asyncio.gather(*(converse(prompt) for prompt in prompts))
    return [answer for answer, _ in found], sum(resumable for _, resumable in found)


async def _all(
    conversations: Conversations, prompts: Sequence[Sequence[int]], output: int, prefill: str
) -> list[Output]:
    running = [await conversations.begin(prompt, output, prefill=prefill) for prompt in prompts]
    return [await conversations.end(one) for one in running]


def differ(one: Output, other: Output) -> bool:
    """Whether any token, logprob or alternative is not the same to the bit."""
    return (one.tokens, one.logprobs, one.tops) != (other.tokens, other.logprobs, other.tops)


def _tokens(draw: random.Random, count: int) -> list[int]:
    return draw.choices(range(VOCABULARY), k=count)
