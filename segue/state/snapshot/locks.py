"""Locks on files, which end with the process that holds them however it ends.

They are BSD locks (`flock`). Between machines they hold where the shared file system passes them on (NFS since version
4, Lustre with `-o flock`, CephFS); where it does not (`-o local_lock`, some FUSE file systems), only processes of one
machine may share a snapshot folder. A process that forks shares its locks with the child.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from segue.errors import SnapshotFailed
from segue.state.snapshot.disk import disk_errors

# Whoever holds the folder's lock writes a few small files at most. It may have to wait for a busy disk.
WAIT_S = 30.0
_POLL_S = 0.002
_BUSY = {errno.EAGAIN, errno.EACCES}


def try_lock(descriptor: int) -> bool:
    """Takes the lock of an open file, if nobody else has it; closing the file gives it up. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _BUSY:
            raise
        return False
    return True


class FolderLock:
    """What only one process, and one thread of it, does in a snapshot folder at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Raises SnapshotFailed when it is not to be had: a process that holds it for so long is frozen."""
        with disk_errors(f"cannot lock {self._path}"):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._wait(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _wait(self, descriptor: int) -> None:
        deadline = time.monotonic() + WAIT_S
        with disk_errors(f"cannot lock {self._path}"):
            while not try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise SnapshotFailed(f"cannot lock {self._path}: another process has held it for {WAIT_S:.0f} s")
                time.sleep(_POLL_S)
