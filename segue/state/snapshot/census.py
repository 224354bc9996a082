"""What lies in a snapshot folder: complete snapshots, ones that are being written, and what nobody will finish.

Whoever takes a census holds the folder's lock, so that nothing begins, or is claimed, meanwhile.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from segue.errors import SnapshotError
from segue.state.snapshot.committed import read_marker
from segue.state.snapshot.disk import NotRegular, folder_bytes, open_regular, read_bounded
from segue.state.snapshot.ground import Ground, is_committed, withdraw
from segue.state.snapshot.locks import try_lock
from segue.state.snapshot.names import MARKER, WRITER_LOCK, is_id

_ANNOUNCED_BYTES_MAX = 32


@dataclass(frozen=True, slots=True)
class Census:
    """How many snapshots there are, their bytes as they are or are going to be, and how many of those are to come."""

    count: int
    bytes: int
    bytes_coming: int


def take_census(ground: Ground) -> Census:
    """Raises OSError."""
    count = total = total_coming = 0
    for folder in snapshot_folders(ground):
        there = folder_bytes(folder)
        try:
            coming = 0 if is_committed(folder) else max(0, _announced(folder) - there)
        except OSError:
            # It counts, with what can be seen of it.
            coming = 0
        count += 1
        total += there + coming
        total_coming += coming
    return Census(count, total, total_coming)


def withdraw_useless(ground: Ground) -> list[Path]:
    """Folders that may be removed now: nobody sees them, nobody writes them. Raises OSError.

    One of which that cannot be told, or that cannot be made invisible, stays, and keeps no other.
    """
    useless = []
    for folder in snapshot_folders(ground):
        with suppress(OSError):
            if _withdraw_if_useless(ground, folder):
                useless.append(folder)
    return useless


def unclaimed_copies(ground: Ground) -> list[Path]:
    """Folders of periodic copies that nobody goes on from at this moment, the newest first. Raises OSError."""
    found = []
    for folder in snapshot_folders(ground):
        with suppress(SnapshotError, OSError):
            kind = read_marker(ground, folder.name).kind
            if kind == "periodic" and ground.possible_claim(folder.name) is None:
                found.append(((folder / MARKER).stat().st_mtime_ns, folder))
    return [folder for _, folder in sorted(found, reverse=True)]


def is_expired(ground: Ground, snapshot_id: str) -> bool:
    """Whether a complete snapshot has had its time, and nobody has a claim on it. Raises OSError."""
    age_s = ground.clock() - (ground.root / snapshot_id / MARKER).stat().st_mtime
    return age_s > ground.config.expire_s and ground.possible_claim(snapshot_id) is None


def snapshot_folders(ground: Ground) -> Iterator[Path]:
    """Everything that is named like a snapshot; what else lies in the folder is not ours. Raises OSError."""
    with os.scandir(ground.root) as entries:
        for entry in entries:
            if is_id(entry.name) and entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)


def _withdraw_if_useless(ground: Ground, folder: Path) -> bool:
    if not is_committed(folder):
        return not _is_being_written(folder)
    if not is_expired(ground, folder.name):
        return False
    withdraw(folder)
    return True


def _is_being_written(folder: Path) -> bool:
    try:
        descriptor = open_regular(folder / WRITER_LOCK)
    except (FileNotFoundError, NotRegular):
        # Its writer died before it had the lock, or it is being removed.
        return False
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def _announced(folder: Path) -> int:
    """What the writer said would come; 0 of one that died before it could say."""
    try:
        raw = read_bounded(folder / WRITER_LOCK, _ANNOUNCED_BYTES_MAX)
    except (FileNotFoundError, NotRegular):
        return 0
    return int(raw) if raw and raw.isdigit() else 0
