"""The marker that makes a snapshot visible: one line of JSON that vouches for the manifest, and one with its HMAC.

The manifest in turn has the digests of all tensors, so the HMAC signs everything.
"""

import hashlib
import hmac
from dataclasses import asdict, dataclass

from segue.errors import SnapshotForeign, SnapshotManifestInvalid
from segue.state.snapshot.fields import Fields, from_json, to_json
from segue.state.snapshot.manifest import NAME_LENGTH_MAX, Manifest, check_version

MARKER_BYTES_MAX = 8192
_UNSIGNED = b"-"


@dataclass(frozen=True, slots=True)
class Marker:
    """What can be told of a snapshot without reading its manifest, whose SHA-256 is `manifest_digest`."""

    version: int
    snapshot_id: str
    created_s: float
    request_id: str
    kind: str
    computed: int
    tp_size: int
    bytes: int
    manifest_bytes: int
    manifest_digest: str


def marker_of(manifest: Manifest, raw: bytes) -> Marker:
    """The one marker that belongs to a manifest and its file `raw`."""
    return Marker(
        version=manifest.version,
        snapshot_id=manifest.snapshot_id,
        created_s=manifest.created_s,
        request_id=manifest.request.request_id,
        kind=manifest.request.kind,
        computed=manifest.state.computed,
        tp_size=manifest.state.tp_size,
        bytes=sum(payload.bytes for payload in manifest.payloads),
        manifest_bytes=len(raw),
        manifest_digest=hashlib.sha256(raw).hexdigest(),
    )


def seal(marker: Marker, key: bytes | None) -> bytes:
    """The marker's file; without a `key` it is unsigned."""
    line = to_json(asdict(marker))
    return b"%s\n%s\n" % (line, _signature(line, key))


def unseal(sealed: bytes, key: bytes | None, where: str) -> Marker:
    """Raises SnapshotForeign before anything is parsed, SnapshotVersionMismatch or SnapshotManifestInvalid."""
    line, _, rest = sealed.partition(b"\n")
    signature = rest.removesuffix(b"\n")
    if key is not None and not hmac.compare_digest(signature, _signature(line, key)):
        signed = "unsigned" if signature == _UNSIGNED else "signed with another key, or changed since"
        raise SnapshotForeign(f"{where} is {signed}")
    fields = Fields(from_json(line, where), where)
    version = fields.integer("version")
    check_version(version, where)
    marker = Marker(
        version=version,
        snapshot_id=fields.text("snapshot_id", length_max=NAME_LENGTH_MAX),
        created_s=fields.number("created_s"),
        request_id=fields.text("request_id", length_max=NAME_LENGTH_MAX),
        kind=fields.text("kind", length_max=NAME_LENGTH_MAX),
        computed=fields.integer("computed"),
        tp_size=fields.integer("tp_size"),
        bytes=fields.integer("bytes"),
        manifest_bytes=fields.integer("manifest_bytes"),
        manifest_digest=fields.text("manifest_digest", length_max=64),
    )
    fields.close()
    return marker


def require_vouched(marker: Marker, raw: bytes, where: str) -> None:
    """Raises SnapshotManifestInvalid when `raw` is not the manifest that was committed."""
    if len(raw) != marker.manifest_bytes or hashlib.sha256(raw).hexdigest() != marker.manifest_digest:
        raise SnapshotManifestInvalid(f"{where} is not the manifest that was committed: its digest is another")


def _signature(line: bytes, key: bytes | None) -> bytes:
    return _UNSIGNED if key is None else hmac.new(key, line, hashlib.sha256).hexdigest().encode()
