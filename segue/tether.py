"""Ties a process to the one that started it: when that one is gone, however it went, this one ends too."""

import ctypes
import os
import signal
import sys
import threading

_PR_SET_PDEATHSIG = 1


def tie_to_parent(parent_pid: int) -> None:
    """Call early, in the child. Linux kills us with our parent; elsewhere the end of our standard input tells.

    The kernel's way also reaches a process that is stopped or stuck. A parent that died before the call is noticed.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    else:
        threading.Thread(target=_watch_stdin, name="tether", daemon=True).start()
    if os.getppid() != parent_pid:
        os._exit(1)


def _watch_stdin() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(1)
