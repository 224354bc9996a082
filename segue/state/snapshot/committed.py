"""A snapshot that is complete and visible: its manifest was checked, its payloads are checked as they are read."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from segue.errors import SnapshotDigestMismatch, SnapshotManifestInvalid, SnapshotNotFound
from segue.state.snapshot.claim import Claim, take_claim
from segue.state.snapshot.disk import disk_errors, read_bounded
from segue.state.snapshot.ground import Ground, is_committed
from segue.state.snapshot.manifest import MANIFEST_BYTES_MAX, Manifest, manifest_from_json
from segue.state.snapshot.marker import MARKER_BYTES_MAX, Marker, marker_of, require_vouched, unseal
from segue.state.snapshot.names import MANIFEST, MARKER
from segue.state.snapshot.payload import PayloadFile, PayloadTensor
from segue.state.snapshot.payload_file import read_payload, verify_payload

T = TypeVar("T")


class CommittedSnapshot:
    """What `SnapshotFolder.read` found. As long as nobody claims it, it may be used up or expire at any time."""

    def __init__(self, ground: Ground, manifest: Manifest) -> None:
        self._ground = ground
        self.manifest = manifest

    def claim(self, owner: str, claimant: str | None = None) -> Claim:
        """Takes the right to continue it. `owner` is for people: at most 128 characters.

        `claimant` names the continuation, by 32 hexadecimal digits that nobody else has: whoever names the same takes
        its claim over at once.

        Raises SnapshotClaimed naming who has it and until when, SnapshotNotFound or SnapshotFailed.
        """
        return take_claim(self._ground, self.manifest.snapshot_id, owner, claimant)

    def load(self, rank: int, beat: Callable[[], None] = lambda: None) -> dict[str, PayloadTensor]:
        """One rank's tensors by name, in memory of their own, every byte verified; `beat` is called now and then.

        Raises SnapshotDigestMismatch naming file and tensor, SnapshotNotFound when it is gone, or SnapshotFailed.
        """
        assert 0 <= rank < len(self.manifest.payloads), f"the snapshot has no rank {rank}"
        return self._read(self.manifest.payloads[rank], partial(read_payload, beat=beat))

    def verify(self) -> None:
        """Reads and checks all ranks, and keeps nothing. Raises what `load` does."""
        for payload in self.manifest.payloads:
            self._read(payload, verify_payload)

    def _read(self, payload: PayloadFile, reader: Callable[[Path, str, PayloadFile], T]) -> T:
        snapshot_id = self.manifest.snapshot_id
        folder = self._ground.root / snapshot_id
        with disk_errors(f"cannot read {payload.file} of snapshot {snapshot_id}"):
            try:
                return reader(folder, snapshot_id, payload)
            except FileNotFoundError:
                if is_committed(folder):
                    raise SnapshotDigestMismatch(f"{payload.file} of snapshot {snapshot_id} is missing") from None
                raise SnapshotNotFound(f"there is no snapshot {snapshot_id} any more") from None


def read_committed(ground: Ground, snapshot_id: str) -> CommittedSnapshot:
    """Raises what `read_marker` does, of the manifest too."""
    marker = read_marker(ground, snapshot_id)
    where = f"the manifest of snapshot {snapshot_id}"
    with disk_errors(f"cannot read {where}"):
        try:
            raw = read_bounded(ground.folder(snapshot_id) / MANIFEST, MANIFEST_BYTES_MAX)
        except FileNotFoundError:
            if is_committed(ground.folder(snapshot_id)):
                raise SnapshotManifestInvalid(f"{where} is missing") from None
            raise SnapshotNotFound(f"there is no snapshot {snapshot_id} any more") from None
    if raw is None:
        raise SnapshotManifestInvalid(f"{where} is longer than {MANIFEST_BYTES_MAX} bytes")
    require_vouched(marker, raw, where)
    manifest = manifest_from_json(raw, where)
    # A whole snapshot that was moved under another id says so.
    if manifest.snapshot_id != snapshot_id or marker_of(manifest, raw) != marker:
        raise SnapshotManifestInvalid(f"{where} is that of another, {manifest.snapshot_id:.80}, or not of its marker")
    return CommittedSnapshot(ground, manifest)


def read_marker(ground: Ground, snapshot_id: str) -> Marker:
    """Raises SnapshotNotFound, SnapshotForeign, SnapshotVersionMismatch, SnapshotManifestInvalid or SnapshotFailed."""
    folder = ground.folder(snapshot_id)
    where = f"the marker of snapshot {snapshot_id}"
    with disk_errors(f"cannot read {where}"):
        if not is_committed(folder):
            raise SnapshotNotFound(f"there is no snapshot {snapshot_id}")
        try:
            sealed = read_bounded(folder / MARKER, MARKER_BYTES_MAX)
        except FileNotFoundError:
            raise SnapshotNotFound(f"there is no snapshot {snapshot_id} any more") from None
    if sealed is None:
        raise SnapshotManifestInvalid(f"{where} is longer than {MARKER_BYTES_MAX} bytes")
    return unseal(sealed, ground.key, where)
