"""A disk that fills up while a snapshot is written: a typed error, and everything removed."""

import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from segue.errors import SnapshotFolderFull
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.payload import PayloadTensor
from tests.state.snapshot.sample import leftovers, manifest_of, open_folder, tensor_bytes, tensors, write_one

DISK_BYTES = 4 << 20
LARGE = PayloadTensor("full", "U8", (2 << 20,), np.ones(2 << 20, dtype=np.uint8))


class SmallDisk:
    """A folder whose disk can be filled: a file system of its own where one may be mounted, else a limit on files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "tmpfs", str(root)]
        try:
            self.mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            self.mounted = False

    @contextmanager
    def full(self, bytes_left: int) -> Iterator[None]:
        """Meanwhile no more than `bytes_left` can be written: to the disk, or else to one file."""
        if not self.mounted:
            before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, before[1]))
            try:
                yield
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
            return
        filler = self.root / "filler"
        disk = os.statvfs(self.root)
        filler.write_bytes(bytes(max(0, disk.f_bavail * disk.f_frsize - bytes_left)))
        try:
            yield
        finally:
            filler.unlink()

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.root)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    # Python ignores the signal that comes with the limit; asserted, as a default would end the test run.
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN
    made = SmallDisk(tmp_path)
    try:
        yield made
    finally:
        made.close()


def _remains(disk: SmallDisk) -> list[str]:
    return [name for name in leftovers(disk.root) if name != "filler"]


def test_a_payload_that_does_not_fit_any_more_leaves_nothing(disk: SmallDisk) -> None:
    folder = open_folder(disk.root)
    full = pytest.raises(SnapshotFolderFull, match=r"rank-0\.safetensors: (No space left|File too large)")
    with folder.begin(2 << 20) as writer, disk.full(1 << 20), full:
        writer.write_rank(0, [LARGE])
    assert _remains(disk) == []
    folder.read(write_one(folder)).verify()


@pytest.mark.parametrize("bytes_left", [0, 4096, 8192])
def test_a_commit_that_does_not_fit_any_more_leaves_nothing(disk: SmallDisk, bytes_left: int) -> None:
    folder = open_folder(disk.root)
    with folder.begin(tensor_bytes()) as writer:
        manifest = manifest_of(writer, [writer.write_rank(rank, tensors(rank)) for rank in range(2)])
        with disk.full(bytes_left if disk.mounted else bytes_left // 16), pytest.raises(SnapshotFolderFull):
            writer.commit(manifest)
        assert folder.list() == []
    assert _remains(disk) == []
    folder.read(write_one(folder)).verify()


def test_no_snapshot_begins_on_a_full_disk(disk: SmallDisk) -> None:
    folder = open_folder(disk.root)
    with disk.full(0), suppress(SnapshotFolderFull), folder.begin(tensor_bytes()) as writer:
        # Where files are limited and not the disk, the first payload is what does not fit.
        writer.write_rank(0, [LARGE])
    assert _remains(disk) == []


def test_a_snapshot_is_claimed_and_used_up_on_a_full_disk(disk: SmallDisk) -> None:
    folder: SnapshotFolder = open_folder(disk.root)
    snapshot_id = write_one(folder)
    with disk.full(0 if disk.mounted else 1024):
        snapshot = folder.read(snapshot_id)
        claim = snapshot.claim("me")
        assert snapshot.load(1)
        claim.renew()
        claim.consume()
    assert _remains(disk) == []
