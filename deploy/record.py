"""Which `segue serve` run on this machine for this user: a locked file for each, gone or unlocked when it has ended."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from segue.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Running:
    """A serve and the port that its router was given."""

    pid: int
    port: int


def record_folder() -> Path:
    """Where this user's records are; nobody else's, because what stands in them is sent signals."""
    folder = Path(tempfile.gettempdir()) / f"segue-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    about = folder.lstat()
    if about.st_uid != os.getuid() or not stat.S_ISDIR(about.st_mode) or about.st_mode & 0o077:
        raise ConfigError(f"{folder} is not a folder of this user alone; remove it")
    return folder


@contextmanager
def recorded(folder: Path, port: int) -> Iterator[None]:
    """Names this process as one that serves. The lock, unlike the file, cannot outlive it."""
    path = folder / f"{os.getpid()}-{port}"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(folder: Path) -> list[Running]:
    """Every serve that runs. What ended ones left behind is cleared away."""
    found = []
    for path in sorted(folder.iterdir()):
        pid, _, port = path.name.partition("-")
        if _locked(path):
            found.append(Running(int(pid), int(port)))
        else:
            path.unlink(missing_ok=True)
    return found


def _locked(path: Path) -> bool:
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False
