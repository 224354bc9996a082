"""A serve is found while it runs, and never after; ending it needs no more than that."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.record import Running, record_folder, running
from deploy.stop import stop_here
from segue.errors import ServingError, WorkerUnavailable

PROGRAM = (
    "import sys; from pathlib import Path; from deploy.record import recorded\n"
    "with recorded(Path(sys.argv[1]), int(sys.argv[2])):\n"
    "    print('up', flush=True); sys.stdin.read()"
)
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@contextmanager
def serving(folder: Path, port: int, program: str = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_serve_is_found_while_it_runs(tmp_path: Path) -> None:
    assert running(tmp_path) == []
    with serving(tmp_path, 8123) as process:
        assert running(tmp_path) == [Running(process.pid, 8123)]
    assert running(tmp_path) == []


def test_a_killed_serve_leaves_no_trace_that_anybody_believes(tmp_path: Path) -> None:
    with serving(tmp_path, 8123) as process:
        process.kill()
        process.wait(10)
        with pytest.raises(WorkerUnavailable, match="no `segue serve`"):
            stop_here(tmp_path, None, 10, print)


def test_stop_ends_the_one_that_runs(tmp_path: Path) -> None:
    said: list[str] = []
    with serving(tmp_path, 8123) as process:
        stop_here(tmp_path, None, 10, said.append)
        assert process.wait(10) == -signal.SIGTERM
    assert "8123" in said[0]


def test_stop_asks_which_when_there_are_several(tmp_path: Path) -> None:
    with serving(tmp_path, 8123) as first, serving(tmp_path, 8124) as second:
        with pytest.raises(ServingError, match=r"--port \d+ or \d+"):
            stop_here(tmp_path, None, 10, print)
        stop_here(tmp_path, 8124, 10, print)
        assert second.wait(10) == -signal.SIGTERM
        assert first.poll() is None


def test_stop_says_when_a_serve_does_not_end(tmp_path: Path) -> None:
    with serving(tmp_path, 8123, DEAF + PROGRAM), pytest.raises(ServingError, match="did not"):
        stop_here(tmp_path, None, 0.1, print)


def test_records_are_this_users_alone() -> None:
    folder = record_folder()
    assert folder.stat().st_uid == os.getuid()
    assert folder.stat().st_mode & 0o077 == 0
