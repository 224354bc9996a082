"""The payload files of a manifest: which tensors of which type and shape lie where, and their digests."""

import re

from segue.errors import SnapshotManifestInvalid
from segue.state.snapshot.fields import Fields, JsonValue, as_integer
from segue.state.snapshot.payload import (
    ITEM_BYTES,
    PayloadFile,
    TensorRecord,
    header_bytes,
    payload_name,
    tensor_bytes,
)

TENSOR_NAME = re.compile(r"(?!__metadata__$)[\x21-\x7e]{1,256}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_DIMENSIONS_MAX = 16


def payload_json(payload: PayloadFile) -> JsonValue:
    return {
        "rank": payload.rank,
        "file": payload.file,
        "bytes": payload.bytes,
        "tensors": [
            {
                "name": tensor.name,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "range": [tensor.start, tensor.stop],
                "digest": tensor.digest,
            }
            for tensor in payload.tensors
        ],
    }


def payload_from_json(value: object, where: str, rank: int, snapshot_id: str) -> PayloadFile:
    """Raises SnapshotManifestInvalid for what cannot be rank `rank`'s payload file, whatever is in it."""
    fields = Fields(value, where)
    payload = PayloadFile(
        fields.integer("rank"),
        fields.text("file", length_max=64),
        fields.integer("bytes"),
        tuple(_tensor(entry, f"{where}.tensors[{place}]") for place, entry in enumerate(fields.array("tensors"))),
    )
    fields.close()
    if (payload.rank, payload.file) != (rank, payload_name(rank)):
        raise SnapshotManifestInvalid(f"{where} is '{payload.file}' of rank {payload.rank}, not that of rank {rank}")
    _require_gapless(payload, where)
    expected = len(header_bytes(snapshot_id, rank, payload.tensors)) + payload.data_bytes
    if payload.bytes != expected:
        raise SnapshotManifestInvalid(f"{where} says {payload.bytes} bytes, its tensors make {expected}")
    return payload


def _tensor(value: object, where: str) -> TensorRecord:
    fields = Fields(value, where)
    name = fields.text("name", length_max=256)
    if not TENSOR_NAME.fullmatch(name):
        raise SnapshotManifestInvalid(f"{where} is not a tensor's name: {name!r}")
    dtype = fields.text("dtype", length_max=16)
    if dtype not in ITEM_BYTES:
        raise SnapshotManifestInvalid(f"{where} is of type {dtype!r}; known are {', '.join(ITEM_BYTES)}")
    shape = tuple(as_integer(size, f"{where}.shape") for size in fields.array("shape"))
    if len(shape) > _DIMENSIONS_MAX:
        raise SnapshotManifestInvalid(f"{where} has {len(shape)} dimensions")
    ends = [as_integer(end, f"{where}.range") for end in fields.array("range")]
    if len(ends) != 2 or ends[1] - ends[0] != tensor_bytes(dtype, shape):
        raise SnapshotManifestInvalid(f"{where} lies at {ends!r:.80}, which does not fit its type and shape")
    digest = fields.text("digest", length_max=64)
    if not _DIGEST.fullmatch(digest):
        raise SnapshotManifestInvalid(f"{where}.digest is not a digest in hexadecimal")
    fields.close()
    return TensorRecord(name, dtype, shape, ends[0], ends[1], digest)


def _require_gapless(payload: PayloadFile, where: str) -> None:
    """The tensors follow each other: no byte of the file is nobody's, or two tensors'."""
    if len({tensor.name for tensor in payload.tensors}) != len(payload.tensors):
        raise SnapshotManifestInvalid(f"{where} has two tensors of one name")
    end = 0
    for tensor in payload.tensors:
        if tensor.start != end:
            raise SnapshotManifestInvalid(f"{where}: '{tensor.name}' begins at {tensor.start} instead of {end}")
        end = tensor.stop
