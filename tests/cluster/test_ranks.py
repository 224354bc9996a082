"""Ranks of deployed workers are killed and frozen under running streams: their worker ends, and nothing is lost."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segue.batch.request import FinishReason
from tests.cluster.deployment import Deployment, deployed, deployed_on_ray, gone
from tests.cluster.test_faults import answer, asked, client, completed, tokens, until_promised, until_readiness
from tests.decode_service.router_end import RouterEnd, spec

LIMIT_S = 3.0


@pytest.fixture(scope="module")
def ranked() -> Iterator[Deployment]:
    """Both workers of two ranks."""
    with deployed("engine.tp=2", "engine.threads=1", f"engine.rank_limit_s={LIMIT_S}") as running:
        yield running


def ranks_of(pid: int) -> list[int]:
    """The ranks above 0 that a worker has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    return [child for child in sorted(children) if b"segue.rank" in Path(f"/proc/{child}/cmdline").read_bytes()]


def struck(deployment: Deployment, role: str, number: signal.Signals) -> tuple[int, int, int]:
    """Signals the rank of a role's worker. Returns both processes, and how often the worker had started."""
    starts = len(deployment.ready(role))
    worker = deployment.ready(role)[-1][1]
    (rank,) = ranks_of(worker)
    os.kill(rank, number)
    return worker, rank, starts


def replaced(deployment: Deployment, role: str, worker: int, rank: int, starts: int) -> None:
    """Waits until both have ended, another worker serves, and nothing is held for anybody."""
    gone(worker, LIMIT_S + 10)
    gone(rank, 10)
    deployment.restarted(role, starts)
    until_readiness(deployment, 200)
    deployment.emptied()


# Each role and each signal once; the other pairs take long.
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_stream_survives_the_loss_of_a_decoding_rank(ranked: Deployment, number: signal.Signals) -> None:
    until_readiness(ranked, 200)
    undisturbed = answer(ranked)
    with client(ranked) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 5))
        lost = struck(ranked, "decode", number)
        assert begun + list(stream) == undisturbed
    replaced(ranked, "decode", *lost)
    assert answer(ranked) == undisturbed


@pytest.mark.parametrize("number", [pytest.param(signal.SIGKILL, marks=pytest.mark.slow), signal.SIGSTOP])
def test_a_prompt_survives_the_loss_of_a_rank_that_computes_it(ranked: Deployment, number: signal.Signals) -> None:
    until_readiness(ranked, 200)
    undisturbed = completed(ranked)
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(completed, ranked)
        until_promised(ranked)
        lost = struck(ranked, "prefill", number)
        assert asking.result(60) == undisturbed
    replaced(ranked, "prefill", *lost)


@pytest.mark.slow
def test_ranks_live_under_ray_too() -> None:
    with deployed_on_ray("engine.tp=2", "engine.threads=1", f"engine.rank_limit_s={LIMIT_S}") as deployment:
        undisturbed = answer(deployment)
        lost = struck(deployment, "decode", signal.SIGKILL)
        replaced(deployment, "decode", *lost)
        assert answer(deployment) == undisturbed


def started(command: list[str]) -> "subprocess.Popen[str]":
    """A process that leads a group of its own."""
    root = Path(__file__).parents[2]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, start_new_session=True)


async def test_a_signal_to_the_whole_group_lets_a_worker_of_ranks_finish() -> None:
    """As a terminal's Ctrl-C does: what runs is finished, and the exit code is that of an orderly end."""
    command = [sys.executable, "-m", "deploy.cli", "worker", "--tp", "2", "--threads", "1"]
    with started([*command, "--set", "worker.drain_s=60", "--set", "worker.silence_s=60"]) as process:
        assert process.stdout is not None
        ready = next(line for line in process.stdout if line.startswith("ready on "))
        async with RouterEnd(ready.split()[-1]) as router, router.attach() as stream:
            handle = await router.generate(spec(max_tokens=30))
            await stream.until(lambda a: handle in a.tokens)
            os.killpg(process.pid, signal.SIGINT)
            await stream.until(lambda a: handle in a.ended)
            ended = stream.ended[handle]
            assert (ended.reason, ended.usage.completion_tokens) == (FinishReason.LENGTH, 30)
        assert process.wait(30) == 0
