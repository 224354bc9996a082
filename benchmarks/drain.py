"""Streams over two decode workers, one of which is told to end, or is killed: what the clients see of it.

Each arm is asked the same twice, in deterministic mode: first nothing happens, then a worker goes while all streams
run. Every answer must be the same both times, token by token.
"""

import argparse
import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx

from benchmarks.quantiles import milliseconds
from benchmarks.refusal import Refused
from benchmarks.separated import PATIENT, await_readiness, running
from benchmarks.server import model_name
from benchmarks.streaming import Answer, ask
from segue.wire import WorkerStatus
from segue.wire.client import WorkerClient

NAME = "drain"
SUMMARY = "broken streams and differing tokens when one of two decode workers drains, or is killed"

ARMS = {"drain": signal.SIGTERM, "kill": signal.SIGKILL}
DRAIN_S = 30.0
START_S = 60.0
SETTINGS = (
    *PATIENT,
    "engine.deterministic=true",
    "engine.threads=1",
    f"worker.drain_s={DRAIN_S}",
    "transfer.verify=true",
    "transfer.extend_tokens=0",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--streams", type=int, default=32, help="streams that run when the worker goes")
    parser.add_argument("--output", type=int, default=192, help="tokens of each answer")
    parser.add_argument("--arm", choices=ARMS, help="only this one")
    parser.add_argument("--transport", default="nixl", help="nixl or grpc")


@dataclass(frozen=True, slots=True)
class Started:
    """A router before two decode workers, of which the first one goes."""

    url: str
    decodes: tuple[str, str]
    leaver: "subprocess.Popen[str]"


def run(args: argparse.Namespace) -> dict[str, object]:
    figures: dict[str, object] = {}
    for name, number in ARMS.items():
        if args.arm not in (None, name):
            continue
        with _started(args) as started:
            figures |= {f"{name}_{key}": value for key, value in asyncio.run(_arm(started, number, args)).items()}
    return figures


@contextmanager
def _started(args: argparse.Namespace) -> Iterator[Started]:
    settings = [*SETTINGS, f"transfer.transports={args.transport}", f"engine.max_running={args.streams}"]
    with ExitStack() as stack:

        def start(*command: str) -> tuple["subprocess.Popen[str]", str]:
            process, (address,) = stack.enter_context(running(("-m", "deploy.cli", *command), settings))
            return process, address

        _, prefill = start("prefill")
        leaver, first = start("decode")
        _, second = start("decode")
        _, url = start("router", "--port", "0", "--prefill", prefill, "--decode", first, "--decode", second)
        await_readiness(url)
        yield Started(url, (first, second), leaver)


async def _arm(started: Started, number: signal.Signals, args: argparse.Namespace) -> dict[str, object]:
    model = model_name(started.url)
    right = await asyncio.gather(*(_ask(started.url, model, "before", i, args.output) for i in range(args.streams)))
    if any(answer is None for answer in right):
        raise Refused("a stream broke although nothing happened")
    asking = [asyncio.create_task(_ask(started.url, model, "after", i, args.output)) for i in range(args.streams)]
    await _all_run(started, args.streams)
    told_s = time.perf_counter()
    started.leaver.send_signal(number)
    await asyncio.to_thread(started.leaver.wait, 2 * DRAIN_S)
    gone_s = time.perf_counter() - told_s
    found = await asyncio.gather(*asking)
    switched, continued = _counted(started.url, "segue:switched_streams"), _counted(started.url, "segue:continuations")
    if not switched + continued:
        raise Refused("the worker that went had no stream")
    if number is signal.SIGTERM and gone_s > DRAIN_S:
        raise Refused(f"the worker took {gone_s:.1f} s to drain, {DRAIN_S:g} are its budget")
    gaps = sorted(gap for answer in found if answer is not None for gap in [longest_gap_s(answer, told_s)])
    moved = gaps[-(switched + continued) :]
    before = [max(answer.gaps_s) for answer in right if answer is not None]
    return {
        "streams": args.streams,
        "broken_streams": sum(answer is None for answer in found),
        "differing_tokens": sum(differing(a, b) for a, b in zip(found, right, strict=True) if a and b),
        "switched": switched,
        "continued": continued,
        "gone_s": round(gone_s, 3),
        "gap_ms_p50": milliseconds(moved, 0.5),
        "gap_ms_p99": milliseconds(moved, 0.99),
        "undisturbed_gap_ms_p50": milliseconds(before, 0.5),
        "undisturbed_gap_ms_p99": milliseconds(before, 0.99),
        **await _left(started.decodes[1]),
    }


async def _left(address: str) -> dict[str, object]:
    """What the worker that stayed says of itself: with no stream left, all of its pools must add up."""
    status = await _status(address)
    while status.live_count:
        await asyncio.sleep(0.05)
        status = await _status(address)
    for pool in status.pools:
        if pool.held or pool.reserved or pool.quarantined:
            raise Refused(f"the worker that stayed still holds something: {pool}")
    return {"moved_in": status.transfers.moved_in, "extended_tokens": status.prefill_tokens}


async def _all_run(started: Started, streams: int) -> None:
    """Returns when every stream has a place in a batch, and both workers have some."""
    try:
        async with asyncio.timeout(START_S):
            while True:
                counts = [(await _status(address)).running for address in started.decodes]
                if sum(counts) == streams and all(counts):
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise Refused(f"{streams} streams never ran at once: {counts} run now") from None


async def _status(address: str) -> WorkerStatus:
    client = WorkerClient(address)
    try:
        return await client.status(10.0)
    finally:
        await client.close()


async def _ask(url: str, model: str, salt: str, number: int, output: int) -> Answer | None:
    """The answer to the stream of that number; None when it broke."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me of {number + 2} things. " + "One after another. " * number}],
        "max_tokens": output,
        "temperature": 0.8 if number % 2 else 0,
        "seed": number,
        "ignore_eos": True,
        "logprobs": True,
        "cache_salt": salt,
    }
    try:
        return await ask(url, "/v1/chat/completions", body)
    except Refused as refusal:
        print(f"stream {number} broke: {refusal}")
        return None


def differing(found: Answer, right: Answer) -> int:
    """Tokens, or their logprobs, that are not those of the other answer at the same place."""
    ours, theirs = (list(zip(one.tokens, one.logprobs, strict=True)) for one in (found, right))
    return sum(a != b for a, b in zip(ours, theirs, strict=False)) + abs(len(ours) - len(theirs))


def longest_gap_s(answer: Answer, since_s: float) -> float:
    """The longest wait for text that ended after a moment; 0 without one."""
    pairs = zip(answer.chunk_times_s, answer.chunk_times_s[1:], strict=False)
    return max((later - earlier for earlier, later in pairs if later >= since_s), default=0.0)


def _counted(url: str, name: str) -> int:
    lines: Sequence[str] = httpx.get(f"{url}/metrics").raise_for_status().text.splitlines()
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in lines if line.startswith(f"{name}_total"))
