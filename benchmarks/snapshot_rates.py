"""How fast a large state goes to disk and comes back, digests on, beside plain files of the same bytes in turn."""

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import TypeVar

import torch

from benchmarks.state_shapes import STATE_SHAPES
from decode_service.snapshots.images import StateImage, StateImages
from decode_service.snapshots.writing import SnapshotWriting
from segue.ids import Page, Slot
from segue.state.layout import Shard, UnitLayout, layouts
from segue.state.needs import first_window_page, page_count
from segue.state.recurrent import SlotStates
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.manifest import ManifestRequest, ManifestState
from segue.state.spec import ComponentName, ModelState
from segue.state.storage import Storage
from segue.state.tables import StateTables
from segue.tokens import EmittedToken

T = TypeVar("T")

PAGE_TOKENS = 64
CHUNK_BYTES = 4 << 20


class Bench:
    """A storage with one request of about so many bytes in it, and room for its restoration elsewhere."""

    def __init__(self, state: ModelState, size: int) -> None:
        made = layouts(state, PAGE_TOKENS, Shard())
        fixed = StateImages(*_storage(made, 1, 1, 1), PAGE_TOKENS, state.window).form
        per_page = fixed.bytes(2 * PAGE_TOKENS, Shard()) - fixed.bytes(PAGE_TOKENS, Shard())
        self.depth = max(PAGE_TOKENS, size // max(1, per_page) * PAGE_TOKENS) - 7
        pages = page_count(self.depth, PAGE_TOKENS)
        first = first_window_page(self.depth, state.window or 0, PAGE_TOKENS)
        windows = pages - first
        storage, slots = _storage(made, 2 * pages + 1, 2 * windows + 1, 3)
        for region in storage.regions.tensors:
            region.random_()
        self.images = StateImages(storage, slots, PAGE_TOKENS, state.window)
        names = {layout.component for layout in made}
        self.tables, self.target = (
            StateTables(
                full=[Page(1 + half * pages + i) for i in torch.randperm(pages).tolist()],
                window=[None] * first + [Page(1 + half * windows + i) for i in torch.randperm(windows).tolist()],
                window_first=first,
                slot=Slot(1 + half) if ComponentName.RECURRENT in names else None,
            )
            for half in (0, 1)
        )
        if self.tables.slot is not None:
            slots.receive(self.tables.slot, self.depth)


def rates(place: Path, size: int, rounds: int) -> dict[str, float]:
    """Bytes a second of export and restore, and as shares of what plain files reach."""
    bench = Bench(STATE_SHAPES["large_hybrid"].state(), size)
    folder = place / "rates"
    folder.mkdir()
    snapshots = SnapshotFolder.open(SnapshotConfig(folder=str(folder)))
    writing = SnapshotWriting(snapshots)
    plain = place / "plain"
    times: dict[str, list[float]] = {"write": [], "export": [], "read": [], "restore": []}
    image = bench.images.take(bench.tables, bench.depth)
    parts = [tensor.view for rank in image.ranks for tensor in rank.values()]
    total = sum(part.nbytes for part in parts)
    for number in range(rounds + 1):
        # The first one warms up: memory that a process never had costs several times what memory costs that it had.
        if number == 1:
            for found_s in times.values():
                found_s.clear()
        times["write"].append(_seconds(lambda: _write(plain, parts)))
        found = _timed(times["export"], lambda: _export(bench, writing))
        _forget([plain, *(folder / found).iterdir()])
        times["read"].append(_seconds(lambda: _read(plain)))
        _timed(times["restore"], partial(_restore, bench, snapshots, found))
        snapshots.delete(found)
    writing.close()
    took = {name: median(found) for name, found in times.items()}
    return {
        "mib": round(total / (1 << 20), 1),
        "export_gb_per_s": round(total / took["export"] / 1e9, 3),
        "export_share": round(took["write"] / took["export"], 3),
        "restore_gb_per_s": round(total / took["restore"] / 1e9, 3),
        "restore_share": round(took["read"] / took["restore"], 3),
    }


def _export(bench: Bench, writing: SnapshotWriting) -> str:
    """As a worker does it: the image, and then all of it on disk. Returns its id."""
    image = bench.images.take(bench.tables, bench.depth)
    return writing.submit(image, *_about(bench)).result().snapshot_id


def _restore(bench: Bench, snapshots: SnapshotFolder, snapshot_id: str) -> None:
    """As a worker does it: every byte verified, and then in place."""
    snapshot = snapshots.read(snapshot_id)
    bench.images.put(StateImage(bench.depth, (snapshot.load(0),)), bench.target)


def _storage(made: Sequence[UnitLayout], full: int, window: int, slots: int) -> tuple[Storage, SlotStates]:
    counts = {ComponentName.FULL: full, ComponentName.WINDOW: window, ComponentName.RECURRENT: slots}
    storage = Storage(made, {layout.component: counts[layout.component] for layout in made}, torch.device("cpu"))
    return storage, SlotStates(storage, slots)


def _about(bench: Bench) -> tuple[ManifestRequest, ManifestState]:
    request = ManifestRequest(
        request_id="rates",
        kind="export",
        prompt=(1,) * bench.depth,
        output=(EmittedToken(1, 0.0, ()),),
        sampling={},
        priority=0,
        cache_salt="",
        extension="",
        deadline_left_s=None,
        cached_tokens=0,
        served=0,
        about={},
    )
    state = ManifestState(
        computed=bench.depth,
        tp_size=1,
        page_tokens=PAGE_TOKENS,
        window=None,
        identity={},
        components={one.component.value: (one.start, one.stop) for one in bench.images.form.contents(bench.depth)},
    )
    return request, state


def _write(path: Path, parts: list[memoryview]) -> None:
    with path.open("wb", buffering=0) as file:
        for part in parts:
            for start in range(0, part.nbytes, CHUNK_BYTES):
                file.write(part[start : start + CHUNK_BYTES])
        os.fsync(file.fileno())


def _read(path: Path) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _forget(paths: list[Path]) -> None:
    """Neither of the two is read from memory."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _timed(times: list[float], work: Callable[[], T]) -> T:
    """What it returns; its seconds go to `times`."""
    started_s = time.perf_counter()
    found = work()
    times.append(time.perf_counter() - started_s)
    return found


def _seconds(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
