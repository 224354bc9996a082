"""One safetensors file, mapped into memory and checked; knows nothing of models or of other files.

The format (github.com/huggingface/safetensors): eight bytes of header length, a JSON header of name -> dtype, shape and
byte offsets, then the tensors' bytes without a gap. It is read here rather than by the library so that every defect is
named, and so that a digest can walk the raw bytes.
"""

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path

import torch

from segue.errors import CheckpointError
from segue.state.spec import DType
from segue.state.storage import TORCH_DTYPE

HEADER_BYTES_MAX = 100_000_000
STORED_DTYPES = {"F32": DType.FLOAT32, "BF16": DType.BFLOAT16, "F16": DType.FLOAT16}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: bytes [start, stop) of its file."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def byte_count(self) -> int:
        return self.stop - self.start


class TensorFile:
    """A mapped file and its tensors by name."""

    def __init__(self, path: Path) -> None:
        """Maps and checks the file. Raises CheckpointError that names it and what is wrong with it."""
        self.path = path
        self._mapped = _mapped(path)
        self.tensors = {tensor.name: tensor for tensor in _stored_tensors(path, self._mapped)}

    def read(self, name: str) -> torch.Tensor:
        """The tensor, sharing the mapped memory: nothing is copied, and a write to it never reaches the file."""
        stored = self.tensors[name]
        dtype = TORCH_DTYPE[stored.dtype]
        if stored.byte_count == 0:
            return torch.empty(stored.shape, dtype=dtype)
        raw = torch.frombuffer(self._mapped, dtype=torch.uint8, count=stored.byte_count, offset=stored.start)
        if stored.start % stored.dtype.item_bytes:
            # Old writers did not align the header; an unaligned view would be slow or refused.
            raw = raw.clone()
        return raw.view(dtype).view(stored.shape)

    def raw(self, name: str) -> memoryview:
        """The tensor's bytes as they are stored."""
        stored = self.tensors[name]
        return memoryview(self._mapped)[stored.start : stored.stop]


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            # Private: torch wants memory that it may write to, and a stray write must not spoil the checkpoint.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is empty; download it again") from error


def _stored_tensors(path: Path, mapped: mmap.mmap) -> list[StoredTensor]:
    data_start, header = _header(path, mapped)
    tensors = [
        _stored_tensor(path, name, entry, data_start) for name, entry in header.items() if name != "__metadata__"
    ]
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    end = data_start
    for tensor in tensors:
        if tensor.start != end:
            raise CheckpointError(
                f"{path} is corrupt: '{tensor.name}' does not follow the tensor before it; download it again"
            )
        end = tensor.stop
    if len(mapped) < end:
        raise CheckpointError(f"{path} is cut short: it has {len(mapped)} of {end} bytes; download it again")
    if len(mapped) > end:
        raise CheckpointError(f"{path} is corrupt: {len(mapped) - end} bytes follow the last tensor; download it again")
    return tensors


def _header(path: Path, mapped: mmap.mmap) -> tuple[int, dict[str, object]]:
    length = int.from_bytes(mapped[:8], "little")
    if len(mapped) < 8 or length > HEADER_BYTES_MAX:
        raise CheckpointError(f"{path} is not a safetensors file (a pointer of git-lfs, perhaps); download it again")
    if len(mapped) < 8 + length:
        raise CheckpointError(f"{path} is cut short: it ends within its header; download it again")
    try:
        header = json.loads(mapped[8 : 8 + length])
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not a safetensors file: its header is not a JSON object")
    return 8 + length, header


def _stored_tensor(path: Path, name: str, entry: object, data_start: int) -> StoredTensor:
    match entry:
        case {"dtype": str(dtype_name), "shape": [*shape], "data_offsets": [int(start), int(stop)]} if all(
            isinstance(size, int) and size >= 0 for size in shape
        ):
            pass
        case _:
            raise CheckpointError(
                f"{path} is corrupt: its header does not describe '{name}' properly; download it again"
            )
    if dtype_name not in STORED_DTYPES:
        known = ", ".join(STORED_DTYPES)
        raise CheckpointError(
            f"'{name}' in {path} is stored as {dtype_name}; supported are {known}: convert the checkpoint"
        )
    tensor = StoredTensor(name, STORED_DTYPES[dtype_name], tuple(shape), data_start + start, data_start + stop)
    if tensor.byte_count != math.prod(shape) * tensor.dtype.item_bytes:
        raise CheckpointError(f"{path} is corrupt: '{name}' has {tensor.byte_count} bytes, its shape says otherwise")
    return tensor
