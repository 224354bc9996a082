"""Which process a peer is, and proof that it is gone; knows nothing of transfers."""

import os
import select
from pathlib import Path

from segue.peering import ProcessIdentity


def own_process() -> ProcessIdentity:
    """This process, as a peer on the same machine can find it."""
    pid = os.getpid()
    return ProcessIdentity(_boot(), _pid_namespace(), pid, _start_ticks(pid))


class ProcessWatch:
    """Tells when a process of this machine has ended, by a handle that a reused number cannot fool."""

    def __init__(self, pidfd: int | None) -> None:
        self._pidfd = pidfd

    @staticmethod
    def open(process: ProcessIdentity) -> "ProcessWatch | None":
        """None when the process cannot be seen from here (another machine, another numbering of processes)."""
        if (process.boot, process.pid_namespace) != (_boot(), _pid_namespace()):
            return None
        try:
            pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return ProcessWatch(None)
        # The number may have been given to another process since: only what started at the same tick is the peer.
        if _start_ticks(process.pid) != process.start_ticks:
            os.close(pidfd)
            return ProcessWatch(None)
        return ProcessWatch(pidfd)

    def gone(self) -> bool:
        """True once the process has ended: nothing of it can write any more."""
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(0):
            return False
        self.close()
        return True

    def close(self) -> None:
        """Gives the handle back."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _start_ticks(pid: int) -> int:
    """When the process started, in ticks since boot; 0 when there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The name in parentheses may hold anything, also spaces; the fields count from behind it.
    return int(text.rpartition(")")[2].split()[19])
