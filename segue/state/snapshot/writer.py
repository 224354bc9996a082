"""Writes one snapshot, of which nobody sees anything until all of it is on the disk.

The order: payloads, manifest, claim record, the marker under another name, their names; then the marker's own name, by
one rename, and that name on the disk. Whatever ends this before the rename leaves files that nobody believes.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from segue.errors import SnapshotFailed
from segue.state.snapshot.claim_record import UNCLAIMED
from segue.state.snapshot.disk import create, disk_errors, remove_folder, sync_folder, write_all, write_durable
from segue.state.snapshot.ground import Ground
from segue.state.snapshot.locks import try_lock
from segue.state.snapshot.manifest import MANIFEST_BYTES_MAX, Manifest, manifest_from_json, manifest_json
from segue.state.snapshot.marker import marker_of, seal
from segue.state.snapshot.names import CLAIM, MANIFEST, MARKER, MARKER_COMING, WRITER_LOCK
from segue.state.snapshot.payload import PayloadFile, PayloadTensor
from segue.state.snapshot.payload_file import write_payload
from segue.state.snapshot.spent import spent_for


class SnapshotWriter:
    """A context manager: left without a commit, it removes everything.

    It holds a lock on a file of its folder, so that nobody sweeps it; a process that dies gives the lock up. On a
    shared file system that does not pass locks on, another machine would sweep what is being written (see locks.py).
    """

    def __init__(self, ground: Ground, snapshot_id: str, bytes_expected: int) -> None:
        """Makes the snapshot's folder. The caller holds the folder's lock. Raises OSError."""
        self.snapshot_id = snapshot_id
        self._ground = ground
        self._folder = ground.root / snapshot_id
        self._bytes_left = bytes_expected
        self._written: list[PayloadFile] = []
        self._committed = False
        self._folder.mkdir(mode=0o700)
        try:
            self._lock = _locked(self._folder / WRITER_LOCK, bytes_expected)
        except OSError:
            remove_folder(self._folder)
            raise

    def __enter__(self) -> "SnapshotWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._committed:
            remove_folder(self._folder)
        os.close(self._lock)

    def write_rank(self, rank: int, tensors: Sequence[PayloadTensor]) -> PayloadFile:
        """Writes one rank's tensors to the disk itself. Raises SnapshotFolderFull or SnapshotFailed."""
        self._bytes_left -= sum(tensor.view.nbytes for tensor in tensors)
        assert self._bytes_left >= 0, "a snapshot is no larger than was said when room was made for it"
        assert rank not in {payload.rank for payload in self._written}, f"rank {rank} is written once"
        written = write_payload(self._folder, self.snapshot_id, rank, tensors)
        self._written.append(written)
        return written

    def commit(self, manifest: Manifest) -> None:
        """Makes the snapshot visible. When this raises, it is not, and never will be.

        Raises SnapshotFolderFull, SnapshotFailed, or SnapshotManifestInvalid for what could not be read again.
        """
        assert not self._committed, "a snapshot is committed once"
        assert manifest.snapshot_id == self.snapshot_id, "a manifest names its own snapshot"
        written = sorted(self._written, key=lambda payload: payload.rank)
        assert list(manifest.payloads) == written, "a manifest names what was written, in order of rank"
        raw = manifest_json(manifest)
        if len(raw) > MANIFEST_BYTES_MAX:
            raise SnapshotFailed(f"the manifest has {len(raw)} bytes, it may have {MANIFEST_BYTES_MAX}")
        # Once the source has given the request up, it is too late to find that nobody can read this.
        manifest_from_json(raw, "the manifest")
        with disk_errors(f"cannot write snapshot {self.snapshot_id} in {self._ground.root}"):
            write_durable(self._folder / MANIFEST, raw)
            write_durable(self._folder / CLAIM, UNCLAIMED)
            write_durable(self._folder / MARKER_COMING, seal(marker_of(manifest, raw), self._ground.key))
            sync_folder(self._folder)
            sync_folder(self._ground.root)
        self._show()
        with suppress(OSError):
            (self._folder / WRITER_LOCK).unlink()

    def _show(self) -> None:
        # Nobody claims, reads on or sweeps it between the rename and the word that the rename is on the disk.
        with self._ground.lock.held(), disk_errors(f"cannot commit snapshot {self.snapshot_id} in {self._ground.root}"):
            if spent_for(self._ground, self.snapshot_id):
                raise SnapshotFailed(f"snapshot {self.snapshot_id} comes too late: its request goes on without it")
            (self._folder / MARKER_COMING).rename(self._folder / MARKER)
            try:
                sync_folder(self._folder)
            except OSError:
                (self._folder / MARKER).unlink(missing_ok=True)
                raise
            self._committed = True


def _locked(path: Path, bytes_expected: int) -> int:
    """A new file that this process has locked and that says how much is going to be written beside it."""
    descriptor = create(path)
    try:
        taken = try_lock(descriptor)
        assert taken, "nobody else knows of this file"
        write_all(descriptor, memoryview(b"%d" % bytes_expected))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
