"""What a snapshot says of the request it is of, in JSON that is read back exactly or refused; no files."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from segue.errors import SnapshotManifestInvalid, SnapshotVersionMismatch
from segue.state.snapshot.fields import (
    Fields,
    JsonObject,
    JsonValue,
    as_array,
    as_integer,
    as_token,
    from_json,
    to_json,
)
from segue.state.snapshot.manifest_output import output_from_json, output_json
from segue.state.snapshot.manifest_payload import payload_from_json, payload_json
from segue.state.snapshot.payload import PayloadFile, TensorRecord
from segue.tokens import EmittedToken

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST_BYTES_MAX",
    "Manifest",
    "ManifestRequest",
    "ManifestState",
    "PayloadFile",
    "SnapshotKind",
    "TensorRecord",
    "check_version",
    "manifest_from_json",
    "manifest_json",
]

FORMAT_VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20
TEXT_LENGTH_MAX = 4096
# Of what stands in the marker too, which is small.
NAME_LENGTH_MAX = 512

SnapshotKind: TypeAlias = Literal["export", "parked", "copy", "periodic"]
_KINDS = get_args(SnapshotKind)
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestRequest:
    """The request as it stood. The last of `output` is the pending token: sampled, not yet computed.

    An `export` was given up by its source, and so was what is `parked`, from which its router itself goes on; a `copy`
    was not, nor a `periodic` one, which nobody asked for. `sampling` and `about` are what worker and router put
    there; nothing here looks into them (lists in them, not tuples, come back as they were). `extension` is in hex.
    `served` is how many tokens of the output the client had.
    """

    request_id: str
    kind: SnapshotKind
    prompt: tuple[int, ...]
    output: tuple[EmittedToken, ...]
    sampling: JsonObject
    priority: int
    cache_salt: str
    extension: str
    deadline_left_s: float | None
    cached_tokens: int
    served: int
    about: JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestState:
    """Whose state it is. `computed` is c; `components` has positions [start, stop) of each component that is there.

    `identity` has what must be equal where the request goes on.
    """

    computed: int
    tp_size: int
    page_tokens: int
    window: int | None
    identity: Mapping[str, str]
    components: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole snapshot but its tensors' bytes. `created_s` is Unix time; `payloads` are in order of rank."""

    version: int
    build: str
    snapshot_id: str
    created_s: float
    request: ManifestRequest
    state: ManifestState
    payloads: tuple[PayloadFile, ...]


def manifest_json(manifest: Manifest) -> bytes:
    """The manifest's file."""
    request, state = manifest.request, manifest.state
    return to_json(
        {
            "version": manifest.version,
            "build": manifest.build,
            "snapshot_id": manifest.snapshot_id,
            "created_s": manifest.created_s,
            "request": {
                "request_id": request.request_id,
                "kind": request.kind,
                "prompt": request.prompt,
                "output": output_json(request.output),
                "sampling": request.sampling,
                "priority": request.priority,
                "cache_salt": request.cache_salt,
                "extension": request.extension,
                "deadline_left_s": request.deadline_left_s,
                "cached_tokens": request.cached_tokens,
                "served": request.served,
                "about": request.about,
            },
            "state": {
                "computed": state.computed,
                "tp_size": state.tp_size,
                "page_tokens": state.page_tokens,
                "window": state.window,
                "identity": state.identity,
                "components": {name: list(span) for name, span in state.components.items()},
            },
            "payloads": [payload_json(payload) for payload in manifest.payloads],
        }
    )


def manifest_from_json(raw: bytes, where: str) -> Manifest:
    """Raises SnapshotVersionMismatch, or SnapshotManifestInvalid naming `where` and the field."""
    fields = Fields(from_json(raw, where), where)
    check_version(fields.integer("version"), where)
    snapshot_id = fields.text("snapshot_id", length_max=NAME_LENGTH_MAX)
    manifest = Manifest(
        version=FORMAT_VERSION,
        build=fields.text("build", length_max=TEXT_LENGTH_MAX),
        snapshot_id=snapshot_id,
        created_s=fields.number("created_s"),
        request=_request(fields.fields("request")),
        state=_state(fields.fields("state")),
        payloads=tuple(
            payload_from_json(value, f"{where}.payloads[{rank}]", rank, snapshot_id)
            for rank, value in enumerate(fields.array("payloads"))
        ),
    )
    fields.close()
    _require_whole(manifest, where)
    return manifest


def check_version(version: int, where: str) -> None:
    """Raises SnapshotVersionMismatch. Asked before anything else is looked at: another version has other fields."""
    if version != FORMAT_VERSION:
        raise SnapshotVersionMismatch(f"{where} is of format version {version}, this build reads {FORMAT_VERSION}")


def _request(fields: Fields) -> ManifestRequest:
    kind = fields.text("kind", length_max=NAME_LENGTH_MAX)
    if kind not in _KINDS:
        raise SnapshotManifestInvalid(f"{fields.where}.kind is {kind!r:.80}, none of {', '.join(_KINDS)}")
    extension = fields.take("extension")
    if not isinstance(extension, str) or not _HEX.fullmatch(extension):
        raise SnapshotManifestInvalid(f"{fields.where}.extension is not hexadecimal")
    request = ManifestRequest(
        request_id=fields.text("request_id", length_max=NAME_LENGTH_MAX),
        kind=cast(SnapshotKind, kind),
        prompt=_tokens(fields.array("prompt"), f"{fields.where}.prompt"),
        output=output_from_json(fields.array("output"), f"{fields.where}.output"),
        sampling=fields.object("sampling"),
        priority=fields.integer("priority", minimum=-(1 << 63)),
        cache_salt=fields.text("cache_salt", length_max=TEXT_LENGTH_MAX),
        extension=extension,
        deadline_left_s=fields.number_or_none("deadline_left_s"),
        cached_tokens=fields.integer("cached_tokens"),
        served=fields.integer("served"),
        about=fields.object("about"),
    )
    fields.close()
    return request


def _state(fields: Fields) -> ManifestState:
    state = ManifestState(
        computed=fields.integer("computed"),
        tp_size=fields.integer("tp_size", minimum=1),
        page_tokens=fields.integer("page_tokens", minimum=1),
        window=fields.integer_or_none("window"),
        identity=_texts(fields.object("identity"), f"{fields.where}.identity"),
        components=_spans(fields.object("components"), f"{fields.where}.components"),
    )
    fields.close()
    return state


def _tokens(values: list[object], where: str) -> tuple[int, ...]:
    for place, value in enumerate(values):
        # A prompt may have a million tokens: what is right is seen at a glance.
        if type(value) is not int or not 0 <= value < 1 << 32:
            as_token(value, f"{where}[{place}]")
    return cast(tuple[int, ...], tuple(values))


def _texts(values: Mapping[str, JsonValue], where: str) -> dict[str, str]:
    found = {}
    for name, value in values.items():
        if not isinstance(value, str):
            raise SnapshotManifestInvalid(f"{where}.{name:.80} is {value!r:.80}, not a text")
        found[name] = value
    return found


def _spans(values: Mapping[str, JsonValue], where: str) -> dict[str, tuple[int, int]]:
    found = {}
    for name, value in values.items():
        at = f"{where}.{name:.80}"
        ends = [as_integer(end, at) for end in as_array(value, at)]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise SnapshotManifestInvalid(f"{at} is {ends!r:.80}, not positions [start, stop)")
        found[name] = (ends[0], ends[1])
    return found


def _require_whole(manifest: Manifest, where: str) -> None:
    """Raises SnapshotManifestInvalid where fields that are right by themselves contradict each other."""
    request, state = manifest.request, manifest.state
    tokens = len(request.prompt) + len(request.output)
    if not request.prompt or not request.output:
        raise SnapshotManifestInvalid(f"{where} has no prompt or no pending token")
    if state.computed != tokens - 1:
        raise SnapshotManifestInvalid(f"{where} has {tokens} tokens and says that {state.computed} are computed")
    if request.served > len(request.output) or request.cached_tokens > len(request.prompt):
        raise SnapshotManifestInvalid(f"{where} says that more tokens were served or cached than there are")
    if len(manifest.payloads) != state.tp_size:
        raise SnapshotManifestInvalid(f"{where} has {len(manifest.payloads)} payloads for {state.tp_size} ranks")
    beyond = [name for name, (_, stop) in state.components.items() if stop > state.computed]
    if beyond:
        raise SnapshotManifestInvalid(f"{where} has '{beyond[0]:.80}' beyond the {state.computed} computed positions")
