"""Small snapshots to write, spoil and read; deterministic, so that two processes write the same."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder, SnapshotWriter
from segue.state.snapshot.manifest import (
    FORMAT_VERSION,
    Manifest,
    ManifestRequest,
    ManifestState,
    PayloadFile,
)
from segue.state.snapshot.payload import PayloadTensor
from segue.tokens import EmittedToken

RANKS = 2
REQUEST = ManifestRequest(
    request_id="req-1",
    kind="export",
    prompt=(5, 6, 4294967295),
    output=(
        EmittedToken(7, -0.1, ((7, -0.1), (9, float("-inf")))),
        EmittedToken(8, None),
    ),
    sampling={"temperature": 0.8, "stop": [1, 2], "seed": 1 << 40, "nested": {"a": None}},
    priority=-3,
    cache_salt="salt",
    extension="00ff",
    deadline_left_s=12.5,
    cached_tokens=2,
    served=1,
    about={"stop": ["ä"], "stream": True},
)
STATE = ManifestState(
    computed=4,
    tp_size=RANKS,
    page_tokens=2,
    window=3,
    identity={"weights": "abc"},
    components={"full": (0, 4), "window": (1, 4), "recurrent": (4, 4)},
)


def config(root: Path, **settings: "str | int | float") -> SnapshotConfig:
    return replace(SnapshotConfig(folder=str(root)), **settings)  # type: ignore[arg-type]


def open_folder(
    root: Path, *, clock: Callable[[], float] = time.time, **settings: "str | int | float"
) -> SnapshotFolder:
    return SnapshotFolder.open(config(root, **settings), clock)


def tensors(rank: int) -> list[PayloadTensor]:
    """Types of different widths in an order that leaves gaps if nobody sorts them; one tensor is empty."""
    return [
        PayloadTensor("full.scales", "U8", (5,), np.arange(5, dtype=np.uint8) + rank),
        PayloadTensor("full.pages", "F8_E4M3", (3, 1000), np.arange(3000).astype(np.uint8) + rank),
        PayloadTensor("recurrent", "F32", (2, 3), (np.arange(6, dtype=np.float32) + rank).data),
        PayloadTensor("conv", "BF16", (7,), np.arange(14, dtype=np.uint8) + rank),
        PayloadTensor("window", "F16", (0, 4), np.empty((0, 8), dtype=np.uint8)),
    ]


def tensor_bytes(ranks: int = RANKS) -> int:
    return sum(tensor.view.nbytes for rank in range(ranks) for tensor in tensors(rank))


def manifest_of(writer: SnapshotWriter, payloads: list[PayloadFile]) -> Manifest:
    return Manifest(
        version=FORMAT_VERSION,
        build="0.1.0",
        snapshot_id=writer.snapshot_id,
        created_s=1234.5,
        request=REQUEST,
        state=replace(STATE, tp_size=len(payloads)),
        payloads=tuple(payloads),
    )


def write_one(folder: SnapshotFolder, ranks: int = RANKS) -> str:
    """The id of a new complete snapshot."""
    with folder.begin(tensor_bytes(ranks)) as writer:
        writer.commit(manifest_of(writer, [writer.write_rank(rank, tensors(rank)) for rank in range(ranks)]))
    return writer.snapshot_id


def same(found: PayloadTensor, expected: PayloadTensor) -> bool:
    described = (found.name, found.dtype, found.shape) == (expected.name, expected.dtype, expected.shape)
    return described and bytes(found.view) == bytes(expected.view)


def later(seconds: float) -> Callable[[], float]:
    """A clock that goes ahead of the system's."""
    return lambda: time.time() + seconds


def leftovers(root: Path) -> list[str]:
    """Everything in the folder but its lock."""
    return sorted(path.name for path in root.iterdir() if path.name != ".lock")
