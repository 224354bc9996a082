"""A rank that ends or freezes ends its worker, in a step and between two; ranks never outlive rank 0."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from decode_service.host import Host
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.loading import Loaded
from kv_transfer.hosting.neighbours import Neighbours
from segue.build import BuiltEngine
from segue.errors import RankFailed, RankLost, ServingError
from segue.ids import Handle
from segue.runner.ranks.crew import Crew
from segue.runner.ranks.orders import Order
from tests.handoff.pair import QUICK, engine_config, loading
from tests.runner.ranks.engines import asking, engine

LIMIT_S = 2.0
SIGNALS = [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)]


def step_for_ever(built: BuiltEngine) -> None:
    for number in itertools.count():
        built.engine.submit(asking(1, 100)[0], Handle(number))
        while (record := built.engine.launch()) is not None:
            built.engine.commit(record)


@pytest.mark.long
@pytest.mark.parametrize("number", SIGNALS)
def test_a_rank_lost_between_steps_is_known(hybrid: Path, number: signal.Signals) -> None:
    with engine(hybrid, tp=2, rank_limit_s=LIMIT_S) as built:
        assert built.crew is not None
        os.kill(built.crew.pids[0], number)
        (pid,) = built.crew.pids
        with pytest.raises(RankLost, match="rank 1 of 2"):
            built.crew.lost.result(LIMIT_S + 3)
        with pytest.raises(RankLost):
            step_for_ever(built)
        # One that is only stopped would keep others waiting.
        _until(lambda: not _lives(pid))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_rank_lost_within_a_step_ends_the_step(hybrid: Path, number: signal.Signals) -> None:
    with engine(hybrid, tp=2, rank_limit_s=LIMIT_S) as built:
        assert built.crew is not None
        # A process of its own: it strikes whatever this one does.
        strike = f"import os, time; time.sleep(0.5); os.kill({built.crew.pids[0]}, {int(number)})"
        with subprocess.Popen([sys.executable, "-c", strike]):
            started = time.monotonic()
            with pytest.raises(RankLost):
                step_for_ever(built)
        assert time.monotonic() - started < LIMIT_S + 8


@pytest.mark.long
def test_ranks_end_with_rank_0(hybrid: Path) -> None:
    lead = (
        "import sys; from pathlib import Path; from tests.runner.ranks.engines import engine\n"
        "with engine(Path(sys.argv[1]), tp=2) as built:\n"
        "    print(*built.crew.pids, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", lead, str(hybrid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(pids) == 1
    _until(lambda: not any(_runs(pid) for pid in pids))


@pytest.mark.parametrize(
    ("code", "error", "what"),
    [
        ("raise SystemExit(3)", RankLost, "rank 1 of 2 has ended with 3"),
        ("assert False", RankFailed, "rank 1 of 2 broke an invariant"),
        ("import os; os.abort()", RankLost, "rank 1 of 2 has ended with -6"),
    ],
)
def test_a_rank_that_does_not_come_is_told_at_once(code: str, error: type[ServingError], what: str) -> None:
    with Crew(2, [sys.executable, "-c", code], LIMIT_S) as crew:
        with pytest.raises(error, match=what):
            crew.wait_done(Order.BUILD, 60.0)
        with pytest.raises(error, match=what):
            crew.lost.result(10)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_while_it_builds_ends_the_start(number: signal.Signals) -> None:
    """It gives signs of life, and never says that it has built."""
    code = (
        "import os, signal, sys, threading, time; from segue.runner.ranks.follower import answer_call; answer_call()\n"
        f"time.sleep(1); os.kill(os.getpid(), {int(number)}); time.sleep(60)\n"
    )
    started = time.monotonic()
    with Crew(2, [sys.executable, "-c", code], LIMIT_S) as crew:
        with pytest.raises(RankLost, match="rank 1 of 2"):
            crew.wait_done(Order.BUILD, 60.0)
        assert time.monotonic() - started < 30


@pytest.mark.long
async def test_of_a_worker_that_lost_a_rank_nothing_is_left(hybrid: Path) -> None:
    config = engine_config(hybrid, "both", tp=4, rank_limit_s=LIMIT_S, max_len=256)
    host = Host(QUICK, TransferConfig(transports="local"), Neighbours())
    crews: list[Crew] = []

    def build() -> Loaded:
        loaded = loading(config)()
        assert loaded.built is not None
        assert loaded.built.crew is not None
        crews.append(loaded.built.crew)
        return loaded

    await host.start(build)
    (crew,) = crews
    os.kill(crew.pids[0], signal.SIGKILL)
    assert isinstance(await asyncio.wait_for(host.broken, 20), RankLost)
    await host.stop()
    _until(lambda: not any(_runs(pid) for pid in crew.pids) and not Path(crew.folder).exists())


def test_who_waits_for_ranks_is_told_when_one_is_lost_and_when_all_end() -> None:
    told: list[bool] = []
    with Crew(2, [sys.executable, "-c", "import time; time.sleep(60)"], LIMIT_S) as crew:
        crew.at_end(lambda: told.append(crew.lost.done()))
        os.kill(crew.pids[0], signal.SIGKILL)
        _until(lambda: told == [True])
    assert told == [True, True]


def test_of_a_crew_that_has_ended_nothing_is_left() -> None:
    before = descriptors()
    with Crew(3, [sys.executable, "-c", "import time; time.sleep(60)"], LIMIT_S) as crew:
        pids, folder = crew.pids, Path(crew.folder)
        assert folder.is_dir()
    assert not folder.exists()
    assert not any(_runs(pid) for pid in pids)
    # Others of earlier tests may have gone meanwhile.
    assert not descriptors() - before


def descriptors() -> set[str]:
    """What this process has open, by what each descriptor leads to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # That of the listing itself is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _lives(pid: int) -> bool:
    """Whether it has not ended, be its end known or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not done():
        assert time.monotonic() < end
        os.sched_yield()
