"""A tied process ends with the one that started it, also when neither can do anything about it."""

import os
import signal
import subprocess
import sys

from tests.cluster.deployment import gone

CHILD = (
    "import os, sys; from segue.tether import tie_to_parent; tie_to_parent(int(sys.argv[1])); "
    "print(os.getpid(), flush=True); sys.stdin.read()"
)
PARENT = (
    "import os, subprocess, sys; command = [sys.executable, '-c', sys.argv[1], str(os.getpid())]; "
    "subprocess.Popen(command, stdin=subprocess.PIPE).wait()"
)


def test_a_tied_process_dies_with_a_killed_parent_even_when_it_is_stopped() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, CHILD], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait(10)
    gone(child)
    parent.stdout.close()


def test_a_process_whose_parent_is_already_gone_ends_at_once() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, "1"], stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
    )
    assert ended.returncode == 1
    assert ended.stdout == b""
