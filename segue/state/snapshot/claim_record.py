"""Who is continuing a snapshot, and until when: one record of fixed size in the file `claim`, rewritten in place.

The room for it is taken when the snapshot is written, so that a full disk keeps nobody from continuing a request.
Whoever reads or writes it to decide something holds the folder's lock: of two who would take over, one comes second and
sees it.
"""

from dataclasses import asdict, dataclass
from pathlib import Path

from segue.errors import SnapshotManifestInvalid
from segue.state.snapshot.disk import NotRegular, read_bounded, rewrite_durable
from segue.state.snapshot.fields import Fields, from_json, to_json

CLAIM_BYTES = 1024
OWNER_LENGTH_MAX = 128
UNCLAIMED = b" " * CLAIM_BYTES


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """`token` tells this claim from a later one of the same owner; None of one that cannot be read. `until_s` is Unix
    time. `claimant` is the continuation that it is for; None where nobody said.
    """

    owner: str
    token: str | None
    until_s: float
    claimant: str | None = None


def claim_bytes(record: ClaimRecord) -> bytes:
    raw = to_json(asdict(record)).ljust(CLAIM_BYTES)
    assert len(raw) == CLAIM_BYTES, f"the owner '{record.owner}' does not fit"
    return raw


def read_claim(path: Path, lease_s: float) -> ClaimRecord | None:
    """None when nobody has a claim. One that cannot be read counts for `lease_s` from when it was written.

    Raises OSError.
    """
    try:
        raw = read_bounded(path, CLAIM_BYTES)
        if raw is None:
            raise SnapshotManifestInvalid(f"{path} is too long")
        return _parsed(raw, str(path)) if raw.strip() else None
    except FileNotFoundError:
        return None
    except (NotRegular, SnapshotManifestInvalid):
        return unknown_claim(path, lease_s)


def unknown_claim(path: Path, lease_s: float) -> ClaimRecord:
    """Of whoever may have written what cannot be read. Raises OSError."""
    return ClaimRecord("somebody unknown", None, path.lstat().st_mtime + lease_s)


def write_claim(path: Path, raw: bytes) -> None:
    """Returns when the record is on the disk. Raises OSError."""
    assert len(raw) == CLAIM_BYTES, "a record fills the room that it has"
    rewrite_durable(path, raw)


def _parsed(raw: bytes, where: str) -> ClaimRecord:
    fields = Fields(from_json(raw, where), where)
    record = ClaimRecord(
        owner=fields.text("owner", length_max=OWNER_LENGTH_MAX),
        token=fields.text("token", length_max=64),
        until_s=fields.number("until_s"),
        claimant=fields.text_or_none("claimant", length_max=64),
    )
    fields.close()
    return record
