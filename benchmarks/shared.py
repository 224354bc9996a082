"""Prompts that begin alike: how much of them is reused, beside what could be, and what that does to their times.

The engine runs in this thread, without ports; a handful of clients each wait for an answer before they ask again.
"""

import argparse
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import segue.zoo
from benchmarks.oracle import Arrived, Computed, Event, Over, Placement, replay
from benchmarks.quantiles import milliseconds
from benchmarks.refusal import Refused
from benchmarks.scripted import scripted_spec
from benchmarks.workloads import WORKLOADS, Parts
from segue.batch.limits import KERNEL_CHUNK
from segue.batch.news import EngineNews
from segue.build import load_engine
from segue.cache.shape import Strategy
from segue.config import EngineConfig
from segue.engine import Engine
from segue.ids import Handle
from segue.weights.folder import ModelFolder

NAME = "shared"
SUMMARY = "hit rate and times of prompts with shared beginnings, beside an oracle of unlimited memory"

BUNDLED_MODEL = Path(segue.zoo.__path__[0]) / "model"
INTERVAL = 256
PAGE_TOKENS = {Strategy.EXTRA_BUFFER: 64, Strategy.NO_BUFFER: 1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--strategy", choices=[str(one) for one in Strategy], default=Strategy.EXTRA_BUFFER.value)
    parser.add_argument("--scale", type=float, default=1.0, help="share of each group's requests that are sent")
    parser.add_argument("--clients", type=int, default=8, help="requests at once")
    parser.add_argument("--output", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL, help="model folder (default: the bundled one)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--state-mib", type=int, default=512, help="memory for state")
    parser.add_argument(
        "--replay-length", type=int, default=1, metavar="L", help="write matrix states every L decode steps only"
    )
    parser.add_argument(
        "--arms",
        action="store_true",
        help="three arms in one run: plain with extra_buffer, and L with no_buffer and with extra_buffer",
    )
    parser.add_argument("--rounds", type=int, default=3, help="of the arms, in turn, after one that warms up")


def run(args: argparse.Namespace) -> dict[str, object]:
    if not args.arms:
        return _arm(args, Strategy(args.strategy), args.replay_length)
    if args.replay_length == 1:
        raise Refused("--arms compares with --replay-length L, which is to be above 1")
    arms = {
        "plain": (Strategy.EXTRA_BUFFER, 1),
        "replay_no_buffer": (Strategy.NO_BUFFER, args.replay_length),
        "replay": (Strategy.EXTRA_BUFFER, args.replay_length),
    }
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    # The first round warms up: kernels are compiled in it.
    for counted in range(args.rounds + 1):
        for name, (strategy, length) in arms.items():
            arm = _arm(args, strategy, length)
            if counted:
                rounds[name].append(arm)
    rates = {name: {one["hit_rate"] for one in found} for name, found in rounds.items()}
    if len(rates["plain"] | rates["replay"]) != 1:
        raise Refused(f"replay changes what is reused: {rates}")
    ttft = {name: median(one["ttft_mean_ms"] for one in found) for name, found in rounds.items()}
    return {
        "ttft_ratio": round(ttft["replay"] / ttft["plain"], 3),
        "no_buffer_ttft_ratio": round(ttft["replay_no_buffer"] / ttft["plain"], 3),
        **{name: {"hit_rate": found[0]["hit_rate"], "ttft_mean_ms": ttft[name]} for name, found in rounds.items()},
        "rounds": rounds,
    }


def _arm(args: argparse.Namespace, strategy: Strategy, replay_length: int) -> dict[str, Any]:
    config = EngineConfig(
        model=args.model,
        checkpoint_strategy=strategy.value,
        page_tokens=PAGE_TOKENS[strategy],
        track_interval=INTERVAL,
        state_bytes=args.state_mib << 20,
        max_running=args.clients,
        replay_length=replay_length,
        device=args.device,
        dtype=args.dtype,
    )
    engine = load_engine(config, ModelFolder.open(args.model)).engine
    conversations = WORKLOADS[args.workload].conversations(args.scale, range(engine.facts.vocab_size))
    clients = Clients(engine, conversations, args.output)
    started_s = time.perf_counter()
    clients.serve(args.clients)
    took_s = time.perf_counter() - started_s
    placement = Placement(math.lcm(config.page_tokens, KERNEL_CHUNK), INTERVAL, strategy)
    reusable = replay(clients.events, placement)
    answers = clients.answers
    asked = sum(answer.prompt_tokens for answer in answers)
    hit_rate, oracle = sum(answer.cached_tokens for answer in answers) / asked, reusable.by_rule / asked
    return {
        "hit_rate": round(hit_rate, 4),
        "oracle_hit_rate": round(oracle, 4),
        "share_of_oracle": round(hit_rate / oracle, 4) if oracle else None,
        "clairvoyant_hit_rate": round(reusable.at_best / asked, 4),
        "requests": len(answers),
        "prompt_tokens": asked,
        "ttft_mean_ms": round(1e3 * fmean(answer.ttft_s for answer in answers), 2),
        "ttft_p99_ms": milliseconds([answer.ttft_s for answer in answers], 0.99),
        "e2e_mean_ms": round(1e3 * fmean(answer.e2e_s for answer in answers), 2),
        "tokens_per_s": round(len(answers) * args.output / took_s, 1),
        "checkpoints_evicted": engine.status().cache.checkpoints_evicted,
    }


@dataclass(slots=True)
class Answer:
    """One request: its prompt, what came, and when. `left` is what its client says after it."""

    prompt: list[int]
    left: Parts
    asked_s: float
    tokens: list[int] = field(default_factory=list)
    first_s: float = 0.0
    ended_s: float = 0.0
    cached_tokens: int = 0

    @property
    def prompt_tokens(self) -> int:
        return len(self.prompt)

    @property
    def ttft_s(self) -> float:
        return self.first_s - self.asked_s

    @property
    def e2e_s(self) -> float:
        return self.ended_s - self.asked_s


class Clients:
    """Clients that take one conversation after the other, and wait for each answer before they go on."""

    def __init__(self, engine: Engine, conversations: Sequence[Parts], output: int) -> None:
        self.answers: list[Answer] = []
        self.events: list[Event] = []
        self._engine, self._output = engine, output
        self._conversations = deque(conversations)

    def serve(self, clients: int) -> None:
        """Returns when all conversations are over."""
        for _ in range(clients):
            self._next()
        while (record := self._engine.launch()) is not None:
            news = self._engine.commit(record)
            self.events += [Computed(row.request.handle, row.depth, row.decode) for row in record.plan.rows]
            self._take(news)
        if self._conversations or not all(answer.ended_s for answer in self.answers):
            raise Refused("the engine stands still with requests unanswered")

    def _next(self) -> None:
        if self._conversations:
            first, *left = self._conversations.popleft()
            self._ask(list(first), tuple(left))

    def _ask(self, prompt: list[int], left: Parts) -> None:
        self.answers.append(Answer(prompt, left, time.perf_counter()))
        handle = Handle(len(self.answers))
        self.events.append(Arrived(handle, prompt))
        self._engine.submit(scripted_spec(f"r{handle}", prompt, self._output), handle)

    def _take(self, news: EngineNews) -> None:
        now_s = time.perf_counter()
        for handle, token in zip(news.handles, news.tokens, strict=True):
            answer = self.answers[handle - 1]
            answer.first_s = answer.first_s or now_s
            answer.tokens.append(token.token_id)
        for ended in news.ended:
            answer = self.answers[ended.handle - 1]
            answer.ended_s, answer.cached_tokens = now_s, ended.usage.cached_tokens
            known = [*answer.prompt, *answer.tokens]
            self.events.append(Over(ended.handle, known[:-1]))
            if answer.left:
                part, *left = answer.left
                self._ask([*known, *part], tuple(left))
            else:
                self._next()
