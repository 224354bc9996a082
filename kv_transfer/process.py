"""Which process a peer is, and proof that it is gone; knows nothing of transfers."""

import errno
import os
import select
from pathlib import Path

from kv_transfer.leavings import unsent_connections
from segue.peering import ProcessIdentity

# What the kernel says of a number that no process has: nobody's, or a mere thread's (by the kernel's age).
_NO_PROCESS = {errno.ESRCH, errno.EINVAL, errno.ENOENT}


def own_process() -> ProcessIdentity:
    """This process, as a peer on the same machine can find it."""
    start_ticks = _start_ticks("self")
    assert start_ticks is not None, "/proc does not show this process to itself"
    return ProcessIdentity(
        boot=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        pid_namespace=_namespace("pid"),
        net_namespace=_namespace("net"),
        time_namespace=_namespace("time"),
        pid=os.getpid(),
        start_ticks=start_ticks,
    )


class ProcessWatch:
    """Tells when a process of this machine has ended, by a handle that a reused number cannot fool."""

    def __init__(self, pidfd: int | None) -> None:
        """None: the process has ended already."""
        self._pidfd = pidfd
        self._unsent: frozenset[tuple[str, str]] | None = None

    @staticmethod
    def open(process: ProcessIdentity) -> "ProcessWatch | None":
        """None when the process cannot be judged from here: another machine or boot, or other namespaces."""
        makes_sense = process.pid > 0 and process.start_ticks > 0
        if not makes_sense or process.place != own_process().place or not _proc_is_ours():
            return None
        try:
            pidfd = os.pidfd_open(process.pid)
        except OSError as error:
            return ProcessWatch(None) if error.errno in _NO_PROCESS else None
        # The number may have been given to another process since: only what started at the same tick is the peer. If
        # that is hidden from us, whoever has the number stands for the peer: while it lives, the peer might.
        if _start_ticks(str(process.pid)) not in (process.start_ticks, None):
            os.close(pidfd)
            return ProcessWatch(None)
        return ProcessWatch(pidfd)

    def ended(self) -> bool:
        """True once the process itself has ended; what it has sent may still be on its way."""
        if self._pidfd is None:
            return True
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(0):
            return False
        self.close()
        return True

    def gone(self) -> bool:
        """True once the process has ended, and the kernel has sent what it left: nothing of it can write any more."""
        if not self.ended():
            return False
        # Whose a connection without an owner was cannot be seen: any that is there now may be the peer's, no later one.
        unsent = unsent_connections()
        self._unsent = unsent if self._unsent is None else self._unsent & unsent
        return not self._unsent

    def close(self) -> None:
        """Gives the handle back."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _namespace(kind: str) -> int:
    """0 for a kind that the kernel does not have."""
    try:
        return os.stat(f"/proc/self/ns/{kind}").st_ino
    except FileNotFoundError:
        return 0


def _proc_is_ours() -> bool:
    """Whether /proc numbers processes as this one does; a /proc of the machine's, in a container, does not."""
    return os.readlink("/proc/self") == str(os.getpid())


def _start_ticks(pid: str) -> int | None:
    """When the process started, in ticks since boot; None where that cannot be seen."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, also spaces; the fields count from behind it.
    return int(text.rpartition(")")[2].split()[19])
