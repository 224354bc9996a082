"""The one configured folder of snapshots: room for new ones, those that are there, an end for those nobody needs."""

import os
import stat
from pathlib import Path

from segue.errors import (
    ConfigError,
    SnapshotError,
    SnapshotFailed,
    SnapshotFolderFull,
    SnapshotManifestInvalid,
    SnapshotNotFound,
    SnapshotsOff,
)
from segue.state.snapshot.census import is_expired, snapshot_folders, take_census, unclaimed_copies, withdraw_useless
from segue.state.snapshot.claim import Claim
from segue.state.snapshot.committed import CommittedSnapshot, read_committed, read_marker
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.disk import disk_errors, folder_bytes, read_bounded, remove_folder
from segue.state.snapshot.ground import Clock, Ground, is_committed, unix_time, withdraw
from segue.state.snapshot.names import is_id, new_id
from segue.state.snapshot.spent import forbid, remove_old_notes, spent_for
from segue.state.snapshot.summary import SnapshotSummary
from segue.state.snapshot.writer import SnapshotWriter

# All that is done with a folder is found in its module.
__all__ = ["Claim", "CommittedSnapshot", "SnapshotFolder", "SnapshotSummary", "SnapshotWriter"]

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 4096


class SnapshotFolder:
    """Safe for threads, and for processes that share the folder (see locks.py for which file systems).

    Whether a lease or a snapshot's time has run out is told by each machine's own clock: machines that share a folder
    must agree on the time to well within `claim_s`.
    """

    def __init__(self, ground: Ground) -> None:
        self._ground = ground

    @staticmethod
    def open(config: SnapshotConfig, clock: Clock = unix_time) -> "SnapshotFolder":
        """Raises ConfigError naming the setting, SnapshotsOff when none is configured."""
        if not config.folder:
            raise SnapshotsOff("this server keeps no snapshots: snapshot.folder is not set")
        ground = Ground(Path(config.folder).absolute(), config, _key(config), clock)
        # Never made here: where a disk failed to be mounted, the snapshots would fill another.
        if not ground.root.is_dir():
            raise ConfigError(f"snapshot.folder {config.folder} is no folder", param="folder")
        if not os.access(ground.root, os.R_OK | os.W_OK | os.X_OK):
            raise ConfigError(f"snapshot.folder {config.folder} is not writable", param="folder")
        about = ground.root.stat()
        foreign = about.st_uid not in (os.geteuid(), 0)
        if not config.key_file and (foreign or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            raise ConfigError(
                f"snapshot.folder {config.folder} can be written by others, who could put snapshots there: take that "
                "from them (chown, chmod go-w), or set snapshot.key_file",
                param="folder",
            )
        try:
            with ground.lock.held():
                pass
        except SnapshotError as error:
            raise ConfigError(f"snapshot.folder {config.folder} is not usable: {error}", param="folder") from error
        return SnapshotFolder(ground)

    def begin(self, bytes_expected: int, snapshot_id: str | None = None, *, periodic: bool = False) -> SnapshotWriter:
        """Room for a snapshot of so many bytes of tensors, once those are removed that nobody needs.

        It is called `snapshot_id` if whoever asked for it has drawn a name, which must be new. Where there is no room,
        the oldest `periodic` copies make it, unless this is one, too: a request goes on without them. Raises
        SnapshotFolderFull naming the limit, or SnapshotFailed.
        """
        assert bytes_expected >= 0, "a size is not negative"
        assert snapshot_id is None or is_id(snapshot_id), "no path is made of what is no id"
        self.sweep()
        ground = self._ground
        with ground.lock.held(), disk_errors(f"cannot begin a snapshot in {ground.root}"):
            self._make_room(bytes_expected, periodic=periodic)
            return SnapshotWriter(ground, snapshot_id or new_id(), bytes_expected)

    def read(self, snapshot_id: str) -> CommittedSnapshot:
        """The snapshot with its manifest checked, its payloads not yet.

        Raises SnapshotNotFound, SnapshotForeign, SnapshotVersionMismatch, SnapshotManifestInvalid or SnapshotFailed.
        """
        found = read_committed(self._ground, snapshot_id)
        with disk_errors(f"cannot read snapshot {snapshot_id}"):
            try:
                expired = is_expired(self._ground, snapshot_id)
            except FileNotFoundError:
                raise SnapshotNotFound(f"there is no snapshot {snapshot_id} any more") from None
        if expired:
            raise SnapshotNotFound(f"snapshot {snapshot_id} has expired")
        return found

    def list(self) -> "list[SnapshotSummary]":
        """Every complete snapshot that has not expired, the oldest first; one that cannot be read is refused there.

        Raises SnapshotFailed when the folder itself cannot be read.
        """
        ground = self._ground
        with ground.lock.held(), disk_errors(f"cannot list {ground.root}"):
            found = [self._summary(folder) for folder in snapshot_folders(ground)]
        return sorted((one for one in found if one is not None), key=lambda one: one.age_order)

    def delete(self, snapshot_id: str) -> None:
        """Removes it, readable or not. Raises SnapshotNotFound, SnapshotClaimed or SnapshotFailed.

        Whoever may have a claim that cannot be read has it for as long as a claim stands.
        """
        folder = self._ground.folder(snapshot_id)
        with self._ground.lock.held():
            self._ground.require_unclaimed(snapshot_id)
            with disk_errors(f"cannot delete snapshot {snapshot_id}"):
                withdraw(folder)
        remove_folder(folder)

    def is_spent(self, snapshot_id: str, claimant: str) -> bool:
        """Whether that claimant has used it up, not long ago. Raises SnapshotFailed."""
        ground = self._ground
        with ground.lock.held(), disk_errors(f"cannot look for snapshot {snapshot_id}"):
            return is_id(snapshot_id) and claimant in spent_for(ground, snapshot_id)

    def forbid(self, snapshot_id: str, claimant: str) -> bool:
        """The request goes on without this snapshot: one that is not complete cannot be committed from now on.

        False when it is complete, or another claimant used it up. Raises SnapshotFolderFull or SnapshotFailed.
        """
        ground = self._ground
        with ground.lock.held(), disk_errors(f"cannot forbid snapshot {snapshot_id}"):
            return is_id(snapshot_id) and forbid(ground, snapshot_id, claimant)

    def sweep(self) -> int:
        """Removes what expired unclaimed and what a writer or a removal that died left; tells how many.

        What cannot be read or removed stays, and keeps nothing else. Raises SnapshotFailed.
        """
        with self._ground.lock.held(), disk_errors(f"cannot sweep {self._ground.root}"):
            useless = withdraw_useless(self._ground)
            remove_old_notes(self._ground)
        for folder in useless:
            remove_folder(folder)
        return len(useless)

    def _make_room(self, bytes_expected: int, *, periodic: bool) -> None:
        evictable: list[Path] | None = [] if periodic or bytes_expected > self._ground.config.bytes_max else None
        while True:
            try:
                self._require_room(bytes_expected)
            except SnapshotFolderFull:
                if evictable is None:
                    evictable = unclaimed_copies(self._ground)
                if not evictable:
                    raise
                withdraw(evicted := evictable.pop())
                remove_folder(evicted)
            else:
                return

    def _require_room(self, bytes_expected: int) -> None:
        ground, config = self._ground, self._ground.config
        census = take_census(ground)
        if census.count >= config.count_max:
            raise SnapshotFolderFull(
                f"{ground.root} has {census.count} snapshots, snapshot.count_max allows {config.count_max}"
            )
        if census.bytes + bytes_expected > config.bytes_max:
            raise SnapshotFolderFull(
                f"{ground.root} has {census.bytes} bytes of snapshots and {bytes_expected} more were to come, "
                f"snapshot.bytes_max allows {config.bytes_max}"
            )
        disk = os.statvfs(ground.root)
        free = disk.f_bavail * disk.f_frsize - census.bytes_coming
        if bytes_expected > free:
            raise SnapshotFolderFull(
                f"the disk of {ground.root} has {max(0, free)} free bytes, {bytes_expected} were to come"
            )

    def _summary(self, folder: Path) -> SnapshotSummary | None:
        """None of what is not complete, or has expired. One that cannot be read says so, and hides no other."""
        ground, snapshot_id, size = self._ground, folder.name, folder_bytes(folder)
        marker = claim = refused = None
        try:
            if not is_committed(folder) or is_expired(ground, snapshot_id):
                return None
            marker = read_marker(ground, snapshot_id)
            if marker.snapshot_id != snapshot_id:
                refused = SnapshotManifestInvalid.kind.code
        except (FileNotFoundError, SnapshotNotFound):
            return None
        except OSError:
            refused = SnapshotFailed.kind.code
        except SnapshotError as error:
            refused = error.kind.code
        try:
            claim = ground.standing_claim(snapshot_id)
        except OSError:
            refused = SnapshotFailed.kind.code
        return SnapshotSummary(
            snapshot_id=snapshot_id,
            bytes=size,
            request_id=None if marker is None else marker.request_id,
            kind=None if marker is None else marker.kind,
            created_s=None if marker is None else marker.created_s,
            computed=None if marker is None else marker.computed,
            tp_size=None if marker is None else marker.tp_size,
            claimed_by=None if claim is None else claim.owner,
            refused=refused,
        )


def _key(config: SnapshotConfig) -> bytes | None:
    """The secret, without a line's end, which editors add; None if none is configured. Raises ConfigError."""
    if not config.key_file:
        return None
    try:
        raw = read_bounded(Path(config.key_file).resolve(), KEY_BYTES_MAX)
    except OSError as error:
        raise ConfigError(
            f"cannot read snapshot.key_file {config.key_file}: {error.strerror}", param="key_file"
        ) from error
    key = (raw or b"").rstrip(b"\r\n")
    if len(key) < KEY_BYTES_MIN:
        raise ConfigError(
            f"snapshot.key_file {config.key_file} must hold {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes", param="key_file"
        )
    return key
