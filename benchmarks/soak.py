"""Hours in short: workloads with shared beginnings in turn, under forced retraction, and the same accuracy after it."""

import argparse
import asyncio
import itertools
import math
import time
from collections import deque

from benchmarks.accuracy import count_differing, results, solve
from benchmarks.refusal import Refused
from benchmarks.retraction_figures import of_workers
from benchmarks.separated import PATIENT, check_handoffs, separated
from benchmarks.server import model_name
from benchmarks.streaming import ask
from benchmarks.workloads import WORKLOADS, Parts
from deploy.settings import bundled_model
from deploy.status import ask as ask_status
from router.text.tokenizer import Tokenizer
from segue.errors import ServingError
from segue.wire import WorkerStatus
from segue.wire.channel import PLAIN

NAME = "soak"
SUMMARY = "minutes of workloads over a pair under forced retraction: errors, pools, and accuracy before and after"

VOCABULARY = range(300, 2_000)
OUTPUT_TOKENS = 48
_EMPTIED_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1_200.0, help="of workloads, between the two accuracies")
    parser.add_argument("--retract-interval", type=int, default=3, metavar="K", help="0: nobody is retracted")
    parser.add_argument("--replay-length", type=int, default=16, metavar="L")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks of each worker")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--shots", type=int, default=8)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--scale", type=float, default=0.25, help="share of each workload's groups that one cycle asks")


def run(args: argparse.Namespace) -> dict[str, object]:
    settings = [
        *PATIENT,
        "engine.threads=1",
        f"engine.replay_length={args.replay_length}",
        f"engine.tp={args.tp}",
        f"retraction.test_interval={args.retract_interval}",
        "retraction.verify=true",
        "transfer.verify=true",
    ]
    with separated("nixl", settings) as url:
        texts = _answers(url, args)
        asked, cycles = asyncio.run(_soak(url, args))
        texts_after = _answers(url, args)
        check_handoffs(url)
        retraction = of_workers(url)
    if sum(one.waiting for one in retraction) or any(
        one.retractions != one.resumed + one.recomputed for one in retraction
    ):
        raise Refused("somebody who was retracted did not come back")
    if mismatched := sum(one.mismatched for one in retraction):
        raise Refused(f"{mismatched} backups came back changed")
    if args.retract_interval and not sum(one.by_test for one in retraction):
        raise Refused("nobody was retracted")
    before, after = _accuracy(texts), _accuracy(texts_after)
    two_errors = 2 * math.sqrt(max(before * (1 - before), 1 / args.problems) / args.problems)
    if abs(after - before) > two_errors:
        raise Refused(f"accuracy was {before} before and {after} after, further apart than {two_errors:.3f}")
    return {
        "seconds": args.seconds,
        "cycles": cycles,
        "requests": asked,
        "differing_answers": count_differing(texts_after, texts),
        "accuracy_before": before,
        "accuracy_after": after,
        "two_standard_errors": round(two_errors, 4),
        "retractions": sum(one.by_test for one in retraction),
        "retracted_requests": sum(one.requests for one in retraction),
        "resumed": sum(one.resumed for one in retraction),
        "recomputed": sum(one.recomputed for one in retraction),
    }


def _answers(url: str, args: argparse.Namespace) -> list[str]:
    answers = asyncio.run(solve(url, seed=0, problems=args.problems, shots=args.shots, concurrency=args.clients))
    return [answer.text for answer in answers]


def _accuracy(texts: list[str]) -> float:
    right, given = results(texts, 0)
    return sum(one == other for one, other in zip(given, right, strict=True)) / len(right)


async def _soak(url: str, args: argparse.Namespace) -> tuple[int, int]:
    """Asks one workload after the other until time is up. Returns how many requests were answered, and cycles done.

    Whatever is not answered raises Refused, and so does a pool that is not whole when nothing runs.
    """
    tokenizer = Tokenizer.from_folder(bundled_model())
    model = model_name(url)
    end_s = time.monotonic() + args.seconds
    asked = 0

    async def client(conversations: deque[Parts], salt: str) -> None:
        nonlocal asked
        while conversations and time.monotonic() < end_s:
            known: list[int] = []
            for part in conversations.popleft():
                known += part
                body: dict[str, object] = {
                    "model": model,
                    "prompt": known,
                    "max_tokens": OUTPUT_TOKENS,
                    "ignore_eos": True,
                    "temperature": 0,
                    "cache_salt": salt,
                }
                answer = await ask(url, "/v1/completions", body)
                asked += 1
                known = [*known, *tokenizer.encode(answer.text)]

    for cycle in itertools.count():
        for name, workload in WORKLOADS.items():
            # What an earlier cycle left in the caches stays there as a burden, and is no help.
            conversations = deque(workload.conversations(args.scale, VOCABULARY))
            async with asyncio.TaskGroup() as clients:
                for _ in range(args.clients):
                    clients.create_task(client(conversations, f"{name} {cycle}"))
            await _require_whole(url)
            if time.monotonic() >= end_s:
                return asked, cycle + (name == [*WORKLOADS][-1])
    raise AssertionError("cycles do not end")


async def _require_whole(url: str) -> None:
    """Nothing runs: every unit of every worker is free or cached. Raises Refused where that does not come about."""
    give_up_at = time.monotonic() + _EMPTIED_S
    while True:
        statuses = [row.status for row in await ask_status(url, PLAIN)]
        if missing := [status.message for status in statuses if isinstance(status, ServingError)]:
            raise Refused(f"a worker says nothing of itself: {missing[0]}")
        left = [status for status in statuses if isinstance(status, WorkerStatus) and not _whole(status)]
        if not left:
            return
        if time.monotonic() > give_up_at:
            raise Refused(f"a worker holds something that nobody uses: {left[0].pools}")
        await asyncio.sleep(0.2)


def _whole(status: WorkerStatus) -> bool:
    pools = all(pool.free + pool.cached + pool.sink == pool.capacity for pool in status.pools)
    return pools and not status.running + status.waiting and not any(pool.held for pool in status.retraction.host)
