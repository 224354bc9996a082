"""Ranks of deployed workers are killed and frozen under running streams: their worker ends, and nothing is lost."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.deployment import Deployment, deployed, gone
from tests.cluster.test_faults import answer, asked, client, tokens, until_readiness

LIMIT_S = 3.0


@pytest.fixture(scope="module")
def ranked() -> Iterator[Deployment]:
    """Both workers of two ranks."""
    with deployed("engine.tp=2", "engine.threads=1", f"engine.rank_limit_s={LIMIT_S}") as running:
        yield running


def ranks_of(pid: int) -> list[int]:
    """The ranks above 0 that a worker has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    by_threads = {
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    }
    found = sorted(by_threads | {int(child) for child in children})
    return [child for child in found if b"segue.rank" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_stream_survives_the_loss_of_a_rank(ranked: Deployment, role: str, number: signal.Signals) -> None:
    until_readiness(ranked, 200)
    undisturbed = answer(ranked)
    _, worker = ranked.ready(role)[-1]
    starts = len(ranked.ready(role))
    (rank,) = ranks_of(worker)
    with client(ranked) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 5))
        os.kill(rank, number)
        lost_at = time.monotonic()
        assert begun + list(stream) == undisturbed
    gone(worker, LIMIT_S + 10)
    gone(rank, 10)
    assert time.monotonic() - lost_at < 60
    ranked.restarted(role, starts)
    until_readiness(ranked, 200)
    assert answer(ranked) == undisturbed
    ranked.emptied()
