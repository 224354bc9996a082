"""A decode worker whose clients want four times its memory, beside one of the same memory that lets few in.

Both arms are asked the same, at the same time, in deterministic mode: every answer must be that of the other arm. The
second arm's batch is capped so that the longest requests fit, and nobody is ever taken off its device.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from random import Random

from benchmarks.refusal import Refused
from benchmarks.retraction_figures import of_workers
from benchmarks.separated import PATIENT, check_handoffs, separated
from benchmarks.server import model_name
from benchmarks.streaming import Answer, ask
from deploy.settings import bundled_model
from segue.batch.role import Role
from segue.build import load_engine
from segue.config import EngineConfig
from segue.errors import ConfigError
from segue.state.needs import page_count
from segue.state.spec import ComponentName
from segue.weights.folder import ModelFolder

NAME = "overload"
SUMMARY = (
    "tokens/s of a decode worker asked for four times its memory, beside one of the same memory that caps its batch"
)

PAGE_TOKENS = 64
PROMPT_MAX, OUTPUT_MAX = 256, 512
DEMAND = 4.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=600.0, help="how long requests come")
    parser.add_argument("--clients", type=int, default=24, help="clients of each arm, each asking one after another")
    parser.add_argument("--host-bytes", type=int, default=1 << 30, help="host memory for backups (0: recompute)")
    parser.add_argument("--seed", type=int, default=0)


@dataclass
class Arm:
    """One pair of workers and what it has answered, by number of the request."""

    url: str
    answers: dict[int, Answer] = field(default_factory=dict)

    def tokens_by(self, end_s: float) -> int:
        """Output tokens that had come by then."""
        done = 0
        for answer in self.answers.values():
            times = answer.chunk_times_s
            # A chunk may carry several tokens: an answer cut by the end counts in proportion.
            done += round(answer.output_tokens * sum(at <= end_s for at in times) / len(times))
        return done


def run(args: argparse.Namespace) -> dict[str, object]:
    longest = page_count(PROMPT_MAX + OUTPUT_MAX, PAGE_TOKENS)
    mean_pages = page_count((PROMPT_MAX + OUTPUT_MAX) // 2, PAGE_TOKENS)
    capped_running = max(1, round(args.clients * mean_pages / DEMAND / longest))
    pages = capped_running * longest
    with ExitStack() as stack:
        retracting = Arm(stack.enter_context(_sized(pages, args.clients, args.host_bytes)))
        capped = Arm(stack.enter_context(_sized(pages, capped_running, args.host_bytes)))
        end_s = asyncio.run(_load((retracting, capped), args))
        check_handoffs(retracting.url)
        figures = _figures(retracting, capped, end_s, args.seconds)
    return {"pages": pages, "demand_pages": args.clients * mean_pages, "capped_running": capped_running, **figures}


def _figures(retracting: Arm, capped: Arm, end_s: float, seconds: float) -> dict[str, object]:
    common = retracting.answers.keys() & capped.answers.keys()
    differing = sum(retracting.answers[number].text != capped.answers[number].text for number in common)
    if differing:
        raise Refused(f"{differing} of {len(common)} answers differ between the arms")
    for worker in of_workers(capped.url):
        if worker.retractions:
            raise Refused(f"the capped arm retracted {worker.retractions} times")
    decode = max(of_workers(retracting.url), key=lambda one: one.retractions)
    if not decode.by_memory:
        raise Refused("memory was never short")
    if decode.waiting or decode.retractions != decode.resumed + decode.recomputed:
        raise Refused("somebody did not come back")
    if decode.resumed_extend_tokens:
        raise Refused(f"{decode.resumed_extend_tokens} positions of resumed requests were extended")
    if any(pool.held for pool in decode.host):
        raise Refused("host memory is held for nobody")
    ours, theirs = retracting.tokens_by(end_s) / seconds, capped.tokens_by(end_s) / seconds
    return {
        "throughput_ratio": round(ours / theirs, 3),
        "tokens_per_s": round(ours, 1),
        "capped_tokens_per_s": round(theirs, 1),
        "requests": len(retracting.answers),
        "compared": len(common),
        "differing": differing,
        "retractions": decode.by_memory,
        "retracted_requests": decode.requests,
        "resumed": decode.resumed,
        "recomputed": decode.recomputed,
        "recomputed_tokens": decode.recomputed_tokens,
        "resumed_extend_tokens": decode.resumed_extend_tokens,
        "copy_s": round(decode.copy_s, 2),
        "away_s_mean": round(decode.away_s / decode.by_memory, 3),
    }


async def _load(arms: Sequence[Arm], args: argparse.Namespace) -> float:
    """Clients ask until the time is over and wait for their answers. Returns when it was over."""
    end_s = time.perf_counter() + float(args.seconds)

    async def client(arm: Arm, numbers: Iterator[int]) -> None:
        for number in numbers:
            if time.perf_counter() >= end_s:
                return
            arm.answers[number] = await ask(arm.url, "/v1/completions", _body(arm_model[arm.url], args.seed, number))

    arm_model = {arm.url: model_name(arm.url) for arm in arms}
    numbers = {arm.url: iter(range(1 << 30)) for arm in arms}
    async with asyncio.TaskGroup() as clients:
        for arm in arms:
            for _ in range(args.clients):
                clients.create_task(client(arm, numbers[arm.url]))
    return end_s


def _body(model: str, seed: int, number: int) -> dict[str, object]:
    """Prompt and output of a length of their own, the same in both arms."""
    draw = Random(seed * 1_000_003 + number)
    prompt = [draw.randrange(300, 2_000) for _ in range(draw.randint(PROMPT_MAX // 4, PROMPT_MAX))]
    output = draw.randint(OUTPUT_MAX // 8, OUTPUT_MAX)
    return {"model": model, "prompt": prompt, "max_tokens": output, "ignore_eos": True, "temperature": 0}


@contextmanager
def _sized(pages: int, running: int, host_bytes: int) -> Iterator[str]:
    """A pair whose decode worker has just so many full pages, and a batch of at most `running`."""
    config = EngineConfig(
        model=bundled_model(),
        deterministic=True,
        threads=1,
        page_tokens=PAGE_TOKENS,
        max_len=PROMPT_MAX + OUTPUT_MAX,
        max_running=running,
        role=Role.DECODE.value,
    )
    settings = [
        *PATIENT,
        "engine.deterministic=true",
        "engine.threads=1",
        f"engine.page_tokens={PAGE_TOKENS}",
        f"engine.max_len={PROMPT_MAX + OUTPUT_MAX}",
        f"engine.max_running={running}",
        "transfer.verify=true",
        "retraction.verify=true",
        f"retraction.host_bytes={host_bytes}",
    ]
    with separated("nixl", settings, [f"engine.state_bytes={_budget(config, pages)}"]) as url:
        yield url


def _budget(config: EngineConfig, pages: int) -> int:
    """The least state memory whose plan has `pages` full pages. Raises Refused where it has more at once."""
    folder = ModelFolder.open(config.model)

    def planned(budget: int) -> int:
        try:
            memory = load_engine(replace(config, state_bytes=budget), folder).memory
        except ConfigError:
            return 0
        return memory.counts[ComponentName.FULL] - 1

    low, high = 1 << 20, 1 << 30
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if planned(middle) >= pages else (middle + 1, high)
    if (found := planned(low)) != pages:
        raise Refused(f"no budget makes {pages} full pages for {config.max_running} running requests: {found}")
    return low
