"""Ends what a serve had started when that serve is gone, however it went: `python -m deploy.guard PID`.

Most of Ray dies with the process that started it, because the kernel sees to that; its agents do not when they cannot
say goodbye. This process watches from outside, remembers who descended from the serve, and outlives it by a moment.
"""

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Iterator

from deploy.family import end_family, family

_LOOK_S = 1.0


@contextlib.contextmanager
def guarded(pid: int) -> Iterator[None]:
    """A guard of `pid`, which is this process, until the end of the block or of the process."""
    # A session of its own: a terminal's Ctrl-C asks the serve to end, and must not reach its guard.
    with subprocess.Popen(
        [sys.executable, "-m", "deploy.guard", str(pid)], stdin=subprocess.PIPE, start_new_session=True
    ):
        yield


def main(pid: int) -> None:
    """Returns when the process at the other end of standard input has let go of it."""
    members: dict[int, int] = {}
    while not select.select([sys.stdin], [], [], _LOOK_S)[0]:
        # Those who ended meanwhile stay: their own children may not have.
        members |= family(pid)
    # We descend from it too.
    end_family({member: started for member, started in members.items() if member not in (pid, os.getpid())})


if __name__ == "__main__":
    main(int(sys.argv[1]))
