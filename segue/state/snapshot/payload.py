"""How a rank's tensors lie in a payload file and what vouches for each of them; reads and writes no files.

A payload is a safetensors file (github.com/huggingface/safetensors): eight bytes of header length, a JSON header, then
the tensors' bytes without a gap. Its header follows from the manifest, byte for byte, so it is compared, never parsed.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from segue.state.snapshot.fields import to_json

ITEM_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
# Pieces of a tensor are hashed by several threads: one thread is slower than a good disk.
CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class PayloadTensor:
    """One tensor of a rank: its contiguous bytes, and their type as safetensors names it (F32, BF16, F8_E4M3, ...)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: "memoryview | npt.NDArray[np.uint8]"

    @property
    def view(self) -> memoryview:
        """The bytes in one dimension."""
        raw = self.data if isinstance(self.data, memoryview) else self.data.data
        assert raw.c_contiguous, f"'{self.name}' is not contiguous"
        return raw.cast("B") if raw.nbytes else memoryview(b"")


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor as the manifest names it: bytes [start, stop) behind the header, and their digest in hex."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    digest: str

    @property
    def byte_count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class PayloadFile:
    """One rank's payload: `bytes` is the size of the whole file, header included."""

    rank: int
    file: str
    bytes: int
    tensors: tuple[TensorRecord, ...]

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(tensor.byte_count for tensor in self.tensors)


def payload_name(rank: int) -> str:
    """The file's name: it is never taken from a manifest."""
    return f"rank-{rank}.safetensors"


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * ITEM_BYTES[dtype]


def ordered(tensors: Sequence[PayloadTensor]) -> list[PayloadTensor]:
    """The widest types first, so that every tensor begins at a multiple of its own item's size."""
    return sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype])


def header_bytes(snapshot_id: str, rank: int, tensors: Sequence[PayloadTensor | TensorRecord]) -> bytes:
    """The beginning of a payload file, in which `tensors` follow each other in this order."""
    described: dict[str, dict[str, object]] = {
        "__metadata__": {"format": "segue-snapshot", "snapshot": snapshot_id, "rank": str(rank)}
    }
    start = 0
    for tensor in tensors:
        stop = start + tensor_bytes(tensor.dtype, tensor.shape)
        described[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, stop]}
        start = stop
    text = to_json(described)  # type: ignore[arg-type]
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def chunks(byte_count: int) -> Iterator[tuple[int, int]]:
    """The pieces [start, stop) in which a tensor is read, written and hashed."""
    for start in range(0, byte_count, CHUNK_BYTES):
        yield start, min(start + CHUNK_BYTES, byte_count)


def chunk_digest(view: memoryview) -> bytes:
    digest: bytes = blake3(view).digest()
    return digest


def tensor_digest(rank: int, name: str, dtype: str, shape: Sequence[int], chunk_digests: Sequence[bytes]) -> str:
    """BLAKE3 of what the tensor is called, whose it is, and the BLAKE3 of each of its chunks; in hex."""
    return str(blake3(to_json([rank, name, dtype, list(shape)]) + b"".join(chunk_digests)).hexdigest())
