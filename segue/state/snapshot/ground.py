"""What the parts of a snapshot folder share: where it is, its settings, key, clock and lock."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from segue.errors import SnapshotClaimed, SnapshotNotFound
from segue.state.snapshot.claim_record import ClaimRecord, read_claim, unknown_claim
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.disk import disk_errors, sync_folder
from segue.state.snapshot.locks import FolderLock
from segue.state.snapshot.names import CLAIM, FOLDER_LOCK, MARKER, is_id

Clock = Callable[[], float]
unix_time: Clock = time.time


@dataclass(frozen=True, slots=True)
class Ground:
    """One snapshot folder. `key` is None where nothing is signed; `clock` tells Unix time."""

    root: Path
    config: SnapshotConfig
    key: bytes | None
    clock: Clock

    @property
    def lock(self) -> FolderLock:
        return FolderLock(self.root / FOLDER_LOCK)

    def folder(self, snapshot_id: str) -> Path:
        """Where a snapshot is, if there is one. Raises SnapshotNotFound for what is no id: no path is made of it."""
        if not is_id(snapshot_id):
            raise SnapshotNotFound(f"there is no snapshot {snapshot_id!r:.80}")
        return self.root / snapshot_id

    def standing_claim(self, snapshot_id: str) -> ClaimRecord | None:
        """The claim that has not run out. Raises OSError. Decide nothing by it without the lock."""
        found = read_claim(self.root / snapshot_id / CLAIM, self.config.claim_s)
        return found if found is not None and found.until_s > self.clock() else None

    def possible_claim(self, snapshot_id: str) -> ClaimRecord | None:
        """The same; one that cannot be read counts for a lease from when it was written. Raises OSError."""
        try:
            return self.standing_claim(snapshot_id)
        except OSError:
            found = unknown_claim(self.root / snapshot_id / CLAIM, self.config.claim_s)
            return found if found.until_s > self.clock() else None

    def require_unclaimed(self, snapshot_id: str, claimant: str | None = None) -> None:
        """Raises SnapshotClaimed, or SnapshotNotFound when the snapshot is gone. The caller holds the lock.

        A claim for the same `claimant` is no obstacle: it tries again because its last try is lost.
        """
        with disk_errors(f"cannot read the claim of snapshot {snapshot_id}"):
            if not is_committed(self.root / snapshot_id):
                raise SnapshotNotFound(f"there is no snapshot {snapshot_id} any more")
            claim = self.possible_claim(snapshot_id)
        if claim is not None and (claimant is None or claim.claimant != claimant):
            raise claimed(snapshot_id, claim)


def is_committed(folder: Path) -> bool:
    """Whether the snapshot in this folder is visible. Raises OSError."""
    return not folder.is_symlink() and (folder / MARKER).is_file()


def withdraw(folder: Path) -> None:
    """Makes a snapshot invisible by one step, for good. The caller holds the lock. Raises OSError."""
    (folder / MARKER).unlink()
    sync_folder(folder)


def claimed(snapshot_id: str, claim: ClaimRecord) -> SnapshotClaimed:
    """The error that says who and until when."""
    try:
        until = datetime.fromtimestamp(claim.until_s, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        until = "the end of time"
    return SnapshotClaimed(f"snapshot {snapshot_id} is claimed by {claim.owner} until {until}")
