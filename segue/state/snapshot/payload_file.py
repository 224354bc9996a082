"""Writes and reads payload files: bytes pass once, and several threads hash them on the way.

Nothing that a file says is believed: its size and header follow from the manifest, and are compared before a byte of it
is read or memory for it allocated.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from segue.errors import SnapshotDigestMismatch
from segue.state.snapshot.disk import create, disk_errors, open_regular, write_all
from segue.state.snapshot.payload import (
    PayloadFile,
    PayloadTensor,
    TensorRecord,
    chunk_digest,
    chunks,
    header_bytes,
    ordered,
    payload_name,
    tensor_bytes,
    tensor_digest,
)

_FLUSH = os.POSIX_FADV_DONTNEED
# More than a few cores: threads that read wait for the disk.
_THREADS = max(4, min(8, os.cpu_count() or 1))


def write_payload(folder: Path, snapshot_id: str, rank: int, tensors: Sequence[PayloadTensor]) -> PayloadFile:
    """Writes the file to the disk itself. Raises SnapshotFolderFull or SnapshotFailed; part of it may then be there."""
    _check(tensors)
    tensors = ordered(tensors)
    header = header_bytes(snapshot_id, rank, tensors)
    path = folder / payload_name(rank)
    with _hashing() as pool:
        hashing = [_hash(pool, tensor.view) for tensor in tensors]
        with disk_errors(f"cannot write {path}"):
            descriptor = create(path)
            try:
                write_all(descriptor, memoryview(header))
                for tensor in tensors:
                    _write_chunks(descriptor, tensor.view)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        records = _records(rank, tensors, [[future.result() for future in futures] for futures in hashing])
    return PayloadFile(rank, path.name, len(header) + sum(record.byte_count for record in records), records)


def read_payload(
    folder: Path, snapshot_id: str, payload: PayloadFile, *, beat: Callable[[], None] = lambda: None
) -> dict[str, PayloadTensor]:
    """Reads and verifies the file, into memory of its own; `beat` is called after each tensor.

    Raises SnapshotDigestMismatch naming file and tensor, FileNotFoundError, or SnapshotFailed.
    """
    path = folder / payload.file
    with _opened(path, snapshot_id, payload) as (descriptor, offset):
        whole = np.empty(payload.data_bytes, dtype=np.uint8)
        _verify(path, payload, partial(_read_into, descriptor, offset, whole.data), beat)
    return {
        record.name: PayloadTensor(record.name, record.dtype, record.shape, whole[record.start : record.stop])
        for record in payload.tensors
    }


def verify_payload(folder: Path, snapshot_id: str, payload: PayloadFile) -> None:
    """As `read_payload`, in a few chunks of memory."""
    path = folder / payload.file
    with _opened(path, snapshot_id, payload) as (descriptor, offset):
        _verify(
            path,
            payload,
            lambda start, stop: _read_chunk(descriptor, offset + start, memoryview(bytearray(stop - start))),
        )


def _check(tensors: Sequence[PayloadTensor]) -> None:
    assert len({tensor.name for tensor in tensors}) == len(tensors), "a rank's tensors have different names"
    for tensor in tensors:
        expected = tensor_bytes(tensor.dtype, tensor.shape)
        assert tensor.view.nbytes == expected, f"'{tensor.name}' has {tensor.view.nbytes} bytes, its shape {expected}"


@contextmanager
def _hashing() -> Iterator[ThreadPoolExecutor]:
    """Threads that are gone when this ends; what they have not begun by then, after an error, they leave."""
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshot")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _hash(pool: ThreadPoolExecutor, view: memoryview) -> "list[Future[bytes]]":
    return [pool.submit(chunk_digest, view[start:stop]) for start, stop in chunks(view.nbytes)]


def _write_chunks(descriptor: int, view: memoryview) -> None:
    for start, stop in chunks(view.nbytes):
        write_all(descriptor, view[start:stop])
        # Starts to move the chunk to the disk now, instead of at the end, while the hashes are still being computed.
        os.posix_fadvise(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR) - (stop - start), stop - start, _FLUSH)


def _records(
    rank: int, tensors: Sequence[PayloadTensor], digests: Sequence[Sequence[bytes]]
) -> tuple[TensorRecord, ...]:
    records, start = [], 0
    for tensor, chunk_digests in zip(tensors, digests, strict=True):
        stop = start + tensor.view.nbytes
        digest = tensor_digest(rank, tensor.name, tensor.dtype, tensor.shape, chunk_digests)
        records.append(TensorRecord(tensor.name, tensor.dtype, tensor.shape, start, stop, digest))
        start = stop
    return tuple(records)


@contextmanager
def _opened(path: Path, snapshot_id: str, payload: PayloadFile) -> Iterator[tuple[int, int]]:
    """The open file and where its tensors begin, once size and header are as the manifest says."""
    header = header_bytes(snapshot_id, payload.rank, payload.tensors)
    descriptor = open_regular(path)
    try:
        with disk_errors(f"cannot read {path}"):
            size = os.fstat(descriptor).st_size
            found = os.pread(descriptor, len(header), 0)
        if size != payload.bytes:
            raise SnapshotDigestMismatch(f"{path.name} has {size} bytes, its manifest says {payload.bytes}")
        if found != header:
            raise SnapshotDigestMismatch(f"{path.name} does not begin with the header of rank {payload.rank}")
        yield descriptor, len(header)
    finally:
        os.close(descriptor)


def _verify(
    path: Path, payload: PayloadFile, read: Callable[[int, int], bytes], beat: Callable[[], None] = lambda: None
) -> None:
    """`read` has bytes [start, stop) of the tensors read, and tells their digest."""
    with _hashing() as pool, disk_errors(f"cannot read {path}"):
        reading = [
            [pool.submit(read, record.start + start, record.start + stop) for start, stop in chunks(record.byte_count)]
            for record in payload.tensors
        ]
        for record, futures in zip(payload.tensors, reading, strict=True):
            digests = [future.result() for future in futures]
            if tensor_digest(payload.rank, record.name, record.dtype, record.shape, digests) != record.digest:
                raise SnapshotDigestMismatch(
                    f"'{record.name}' in {path.name} is not what was written: its digest is another"
                )
            beat()


def _read_into(descriptor: int, offset: int, whole: memoryview, start: int, stop: int) -> bytes:
    return _read_chunk(descriptor, offset + start, whole[start:stop])


def _read_chunk(descriptor: int, start: int, into: memoryview) -> bytes:
    """Fills `into` from the file and hashes it while it is near. A file that was cut meanwhile hashes otherwise."""
    filled = 0
    while filled < into.nbytes and (read := os.preadv(descriptor, [into[filled:]], start + filled)):
        filled += read
    return chunk_digest(into[:filled])
