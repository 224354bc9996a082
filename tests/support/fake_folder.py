"""A snapshot folder in memory, for workers without an engine: real manifests, no payloads."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

from segue.errors import SnapshotClaimed, SnapshotNotFound
from segue.state.snapshot.fields import Fields, from_json
from segue.state.snapshot.manifest import (
    FORMAT_VERSION,
    Manifest,
    ManifestRequest,
    ManifestState,
    manifest_json,
)
from segue.state.snapshot.payload import PayloadFile, header_bytes, payload_name
from segue.tokens import EmittedToken
from segue.wire import GenerateSpec, SnapshotSummary, TakeSnapshot, sampling_to_json

_numbers = itertools.count(1)


class FakeFolder:
    """Several workers may share it. What somebody has claimed is neither resumed nor deleted."""

    def __init__(self) -> None:
        self.manifests: dict[str, Manifest] = {}
        self.claimed: dict[str, str] = {}
        # Of those that are there and cannot be read: why; and others, of which only the list tells.
        self.unreadable: dict[str, str] = {}
        self.also: Sequence[SnapshotSummary] = ()

    def write(self, spec: GenerateSpec, output: Sequence[EmittedToken], asked: TakeSnapshot) -> Manifest:
        """The snapshot of a choice with that output."""
        snapshot_id = asked.snapshot_id
        computed = len(spec.prompt) + len(output) - 1
        about = from_json(asked.about, "about")
        assert isinstance(about, dict), "about is an object"
        manifest = Manifest(
            version=FORMAT_VERSION,
            build="fake",
            snapshot_id=snapshot_id,
            created_s=float(next(_numbers)),
            request=ManifestRequest(
                request_id=spec.request_id,
                kind="copy" if asked.copy else "parked" if asked.parked else "export",
                prompt=tuple(int(token) for token in spec.prompt),
                output=tuple(output),
                sampling=Fields({"sampling": sampling_to_json(spec.sampling)}, "fake").object("sampling"),
                priority=spec.priority,
                cache_salt=spec.cache_salt,
                extension=spec.extension.hex(),
                deadline_left_s=spec.deadline_s,
                cached_tokens=0,
                served=asked.served,
                about=about,
            ),
            state=ManifestState(
                computed=computed,
                tp_size=1,
                page_tokens=64,
                window=None,
                identity={},
                components={"full": (0, computed)},
            ),
            payloads=(PayloadFile(0, payload_name(0), len(header_bytes(snapshot_id, 0, ())), ()),),
        )
        self.manifests[snapshot_id] = manifest
        return manifest

    def put(self, manifest: Manifest, request: ManifestRequest) -> str:
        """The same snapshot with another request in it, under another id."""
        snapshot_id = f"{next(_numbers):032x}"
        payload = PayloadFile(0, payload_name(0), len(header_bytes(snapshot_id, 0, ())), ())
        self.manifests[snapshot_id] = replace(manifest, snapshot_id=snapshot_id, request=request, payloads=(payload,))
        return snapshot_id

    def read(self, snapshot_id: str) -> bytes:
        return manifest_json(self._find(snapshot_id))

    def list(self) -> tuple[SnapshotSummary, ...]:
        readable = tuple(
            SnapshotSummary(
                snapshot_id=snapshot_id,
                request_id=manifest.request.request_id,
                kind=manifest.request.kind,
                created_s=manifest.created_s,
                bytes=sum(payload.bytes for payload in manifest.payloads),
                computed=manifest.state.computed,
                tp_size=manifest.state.tp_size,
                claimed_by=self.claimed.get(snapshot_id),
            )
            for snapshot_id, manifest in self.manifests.items()
        )
        unreadable = [
            SnapshotSummary(snapshot_id=snapshot_id, bytes=0, refused=why)
            for snapshot_id, why in self.unreadable.items()
        ]
        return (*readable, *self.also, *unreadable)

    def take_out(self, snapshot_id: str) -> Manifest:
        """It is resumed, or deleted."""
        manifest = self._find(snapshot_id)
        if owner := self.claimed.get(snapshot_id):
            raise SnapshotClaimed(f"snapshot {snapshot_id} is claimed by {owner}")
        del self.manifests[snapshot_id]
        return manifest

    def _find(self, snapshot_id: str) -> Manifest:
        manifest = self.manifests.get(snapshot_id)
        if manifest is None:
            raise SnapshotNotFound(f"there is no snapshot {snapshot_id}")
        return manifest
