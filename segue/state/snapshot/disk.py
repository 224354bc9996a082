"""Files as a snapshot folder needs them: regular, bounded, durable, and their failures typed errors.

Knows nothing of what the files mean.
"""

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from segue.errors import SnapshotFailed, SnapshotFolderFull

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# A link is never followed and a pipe never waited for: in a shared folder a name may be anything.
_NOT_REGULAR = {errno.ELOOP, errno.EISDIR, errno.ENXIO}
_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NotRegular(OSError):
    """A name stands for something that no writer of snapshots makes: a link, a pipe, a folder."""


@contextmanager
def disk_errors(doing: str) -> Iterator[None]:
    """An OSError inside becomes SnapshotFolderFull or SnapshotFailed, whose message begins with `doing`."""
    try:
        yield
    except OSError as error:
        raised = SnapshotFolderFull if error.errno in _FULL else SnapshotFailed
        raise raised(f"{doing}: {error.strerror or error}") from error


def open_regular(path: Path) -> int:
    """A descriptor to read from. Raises NotRegular or another OSError."""
    return _opened(path, os.O_RDONLY)


def create(path: Path) -> int:
    """A descriptor to write a new file with; only its owner may read it: it holds what people wrote."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)


def _opened(path: Path, mode: int) -> int:
    try:
        descriptor = os.open(path, mode | _SAFE)
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise NotRegular(errno.EINVAL, "not a regular file") from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise NotRegular(errno.EINVAL, "not a regular file")


def read_bounded(path: Path, bytes_max: int) -> bytes | None:
    """The whole file; None if it is longer than that. Raises OSError."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if size > bytes_max:
            return None
        read = bytearray()
        while len(read) < size and (more := os.read(descriptor, size - len(read))):
            read += more
        return bytes(read)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, view: memoryview) -> None:
    """Writes every byte, in as many calls as that takes. Raises OSError."""
    while view.nbytes:
        view = view[os.write(descriptor, view) :]


def write_durable(path: Path, content: bytes) -> None:
    """A new file that is on the disk when this returns; its name is so after `sync_folder`. Raises OSError."""
    descriptor = create(path)
    try:
        write_all(descriptor, memoryview(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rewrite_durable(path: Path, content: bytes) -> None:
    """Overwrites the beginning of a file and returns when that is on the disk. Raises NotRegular or another OSError."""
    descriptor = _opened(path, os.O_WRONLY)
    try:
        write_all(descriptor, memoryview(content))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Names that came, went or changed in this folder are so on the disk too. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def folder_bytes(path: Path) -> int:
    """Bytes of the files in a folder, as far as they can be seen: others may be removing it at the same time."""
    total = 0
    with suppress(OSError), os.scandir(path) as entries:
        for entry in entries:
            with suppress(OSError):
                total += entry.stat(follow_symlinks=False).st_size
    return total


def remove_folder(path: Path) -> None:
    """Removes what it can: whatever stays is nobody's, and the next sweep finds it."""
    shutil.rmtree(path, ignore_errors=True)
