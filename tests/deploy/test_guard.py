"""A guard ends whatever a killed process had started, and nobody else."""

import subprocess
import sys

import pytest

from deploy.family import end_family, family
from tests.cluster.deployment import gone

GRANDCHILD = "import sys, time; print('up', flush=True); time.sleep(600)"
# Two generations, and a grandchild that leads a session of its own, as Ray's processes do.
CHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE, start_new_session=True)\n"
    "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
)
GUARDED = (
    "import os, subprocess, sys, time\n"
    "from deploy.guard import guarded\n"
    "with guarded(os.getpid()):\n"
    "    child = subprocess.Popen([sys.executable, '-c', *sys.argv[1:]], stdout=subprocess.PIPE)\n"
    "    grandchild = int(child.stdout.readline())\n"
    "    time.sleep(3)\n"
    "    print(child.pid, grandchild, flush=True); time.sleep(600)"
)


@pytest.mark.long
def test_everybody_ends_with_a_killed_process() -> None:
    command = [sys.executable, "-c", GUARDED, CHILD, GRANDCHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child, grandchild = map(int, process.stdout.readline().split())
        assert {child, grandchild} <= family(process.pid).keys()
        process.kill()
        gone(child)
        gone(grandchild)


def test_a_process_id_that_was_used_again_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", GRANDCHILD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ((pid, started),) = family(process.pid).items()
        end_family({pid: started - 1})
        assert process.poll() is None
        end_family({pid: started})
        assert process.wait(10) < 0


def test_the_family_of_nobody_is_empty() -> None:
    assert family(2**22 + 1) == {}
