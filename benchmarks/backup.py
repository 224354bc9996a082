"""What a retraction's copies cost: states of requests out to host memory and back, beside plain copies of their bytes.

Between memory of the same kinds, by the same number of threads, interleaved in one run. A plain copy is torch's, of one
block.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from statistics import median

import numpy as np
import torch

from benchmarks.refusal import Refused
from benchmarks.state_shapes import STATE_SHAPES
from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.memory import host_arena
from decode_service.retraction.store import retraction_store
from segue.batch.backups import Backup
from segue.ids import Page, Slot
from segue.state.layout import Shard, layouts
from segue.state.needs import page_count
from segue.state.recurrent import SlotStates
from segue.state.spec import ComponentName, ModelState, uses_ssm_state
from segue.state.storage import Storage
from segue.state.tables import StateTables

NAME = "backup"
SUMMARY = "GB/s of backup and restore of requests' state, and their share of a plain copy's between the same memory"

PAGE_TOKENS = 64
# The last page is not full: clearing what lies past its end is part of a backup.
LAST_TOKENS = 57


class Placement(Enum):
    """Where a request's units are on the device: one after another, or anywhere."""

    CONTIGUOUS = "contiguous"
    SCATTERED = "scattered"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cpu", help="where the state is; for cuda, host memory is pinned")
    parser.add_argument("--bytes", type=int, default=1 << 30, help="state that is copied at once")
    parser.add_argument("--requests", type=int, default=8, help="how many requests it belongs to")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured; the median counts")
    parser.add_argument(
        "--shapes", nargs="+", choices=STATE_SHAPES, default=[*STATE_SHAPES], help="pages and slots of which models"
    )


def run(args: argparse.Namespace) -> dict[str, object]:
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise Refused("torch sees no CUDA device here")
    shapes: dict[str, object] = {}
    cases: list[dict[str, float]] = []
    for name in args.shapes:
        bed = _Bed(STATE_SHAPES[name].state(), device, args.bytes, args.requests)
        rates = bed.measure(args.rounds)
        found = {placement.value: beside_plain(rates, placement) for placement in Placement}
        # What one thread of the C library's copy reaches, which writes past the cache where blocks are large.
        memcpy = {f"{name}_gb_s": round(rate, 3) for name, rate in rates.items() if name.startswith("memcpy")}
        shapes[name] = {"bytes": bed.bytes, **memcpy, **found}
        cases += found.values()
    # Of the case that is worst.
    out, back = (min(cases, key=lambda case: case[ratio]) for ratio in ("save_ratio", "restore_ratio"))
    worst = {name: out[name] for name in ("save_ratio", "save_gb_s", "plain_save_gb_s")}
    worst |= {name: back[name] for name in ("restore_ratio", "restore_gb_s", "plain_restore_gb_s")}
    return {**worst, "shapes": shapes}


def beside_plain(rates: dict[str, float], placement: Placement) -> dict[str, float]:
    """Rates of one placement, and their share of those of a plain copy."""
    figures: dict[str, float] = {}
    for way in ("save", "restore"):
        mine, plain = rates[f"{placement.value}_{way}"], rates[f"plain_{way}"]
        figures |= {f"{way}_ratio": mine / plain, f"{way}_gb_s": mine, f"plain_{way}_gb_s": plain}
    return {name: round(figure, 3) for name, figure in figures.items()}


class _Bed:
    """Storage with twice the units of some requests, host memory for all of them, and memory for plain copies."""

    def __init__(self, state: ModelState, device: torch.device, size: int, requests: int) -> None:
        made = layouts(state, PAGE_TOKENS, Shard())
        sizes = {layout.component: layout.unit_bytes for layout in made}
        self._depth, self._units = _request(state, sizes, size // requests)
        self._state, self._requests = state, requests
        self.bytes = requests * sum(count * sizes[name] for name, count in self._units.items())
        counts = {name: 2 * requests * count + 1 for name, count in self._units.items()}
        self._storage = Storage(made, counts, device)
        self._storage.arena.random_()
        self._slots = SlotStates(self._storage, counts.get(ComponentName.RECURRENT, 1))
        config = RetractionConfig(host_bytes=self.bytes)
        self._store = retraction_store(config, "benchmark", state, self._storage, self._slots, PAGE_TOKENS)
        self._host, self._device = (
            host_arena(self.bytes, device),
            torch.empty(self.bytes, dtype=torch.uint8, device=device),
        )
        self._device.random_()

    def measure(self, rounds: int) -> dict[str, float]:
        """GB/s of each copy by name. Raises Refused when not the same bytes come back."""
        times: dict[str, list[float]] = defaultdict(list)
        # The first round warms up.
        for number in range(1 + rounds):
            found = self._plain()
            for placement in Placement:
                found |= self._backup(placement)
            for name, time_s in found.items():
                times[name] += [time_s] if number else []
        return {name: self.bytes / median(measured) / 1e9 for name, measured in times.items()}

    def _plain(self) -> dict[str, float]:
        """Seconds of copies of one block of as many bytes."""
        times = {
            "plain_save": self._timed(lambda: self._host.copy_(self._device, non_blocking=True)),
            "plain_restore": self._timed(lambda: self._device.copy_(self._host, non_blocking=True)),
        }
        if not self._device.is_cuda:
            host, device = self._host.numpy(), self._device.numpy()
            times["memcpy_save"] = self._timed(lambda: np.copyto(host, device))
            times["memcpy_restore"] = self._timed(lambda: np.copyto(device, host))
        return times

    def _backup(self, placement: Placement) -> dict[str, float]:
        """Seconds until every request is off the device, and until every one is back, in other units."""
        first, second = self._tables(placement)
        backups: list[Backup] = []
        for tables in first:
            if tables.slot is not None:
                self._slots.receive(tables.slot, self._depth)

        def save() -> None:
            for tables in first:
                backup = self._store.save(tables, self._depth)
                if backup is None:
                    raise Refused("the host memory is smaller than the state that it is for")
                backups.append(backup)
            self._store.finish()

        def restore() -> None:
            for backup, tables in zip(backups, second, strict=True):
                self._store.restore(backup, tables)
            self._store.finish()

        saved_s = self._timed(save)
        for tables in second:
            for component, units in _units(tables).items():
                for unit in units:
                    self._storage.zero(component, unit)
        restored_s = self._timed(restore)
        for backup, ours, theirs in zip(backups, first, second, strict=True):
            self._require_equal(ours, theirs)
            self._store.free(backup)
            if ours.slot is not None:
                self._slots.release(ours.slot)
        return {f"{placement.value}_save": saved_s, f"{placement.value}_restore": restored_s}

    def _tables(self, placement: Placement) -> tuple[list[StateTables], list[StateTables]]:
        """Tables of all requests before they leave the device, and after."""
        draw = np.random.default_rng(0)
        orders: dict[ComponentName, list[int]] = {}
        for name, count in self._units.items():
            order = np.arange(1, 2 * self._requests * count + 1)
            if placement is Placement.SCATTERED:
                order = draw.permutation(order)
            orders[name] = order.tolist()
        made = []
        for number in range(2 * self._requests):
            tables = StateTables()
            for name, count in self._units.items():
                units = orders[name][number * count : (number + 1) * count]
                match name:
                    case ComponentName.FULL:
                        tables.full = [Page(unit) for unit in units]
                    case ComponentName.WINDOW:
                        tables.window_first = page_count(self._depth, PAGE_TOKENS) - count
                        tables.window = [*[None] * tables.window_first, *map(Page, units)]
                    case ComponentName.RECURRENT:
                        tables.slot = Slot(units[0])
            made.append(tables)
        return made[: self._requests], made[self._requests :]

    def _require_equal(self, ours: StateTables, theirs: StateTables) -> None:
        places = _units(theirs)
        for component, units in _units(ours).items():
            for one, other in zip(units, places[component], strict=True):
                if not torch.equal(
                    self._storage.unit_bytes(component, one), self._storage.unit_bytes(component, other)
                ):
                    raise Refused(f"unit {one} of {component} did not come back as it was")

    def _timed(self, work: Callable[[], object]) -> float:
        self._settle()
        started_s = time.perf_counter()
        work()
        self._settle()
        return time.perf_counter() - started_s

    def _settle(self) -> None:
        if self._device.is_cuda:
            torch.cuda.synchronize(self._device.device)


def _request(state: ModelState, sizes: dict[ComponentName, int], size: int) -> tuple[int, dict[ComponentName, int]]:
    """Depth of a request whose state has about `size` bytes, and its units of each component."""
    units: dict[ComponentName, int] = {}
    if state.window is not None:
        units[ComponentName.WINDOW] = page_count(state.window - LAST_TOKENS, PAGE_TOKENS) + 1
    if uses_ssm_state(state):
        units[ComponentName.RECURRENT] = 1
    fixed = sum(count * sizes[name] for name, count in units.items())
    pages = (size - fixed) // sizes[ComponentName.FULL]
    if pages < units.get(ComponentName.WINDOW, 1):
        raise Refused(f"{size} bytes are too few for a request of this shape")
    return (pages - 1) * PAGE_TOKENS + LAST_TOKENS, {ComponentName.FULL: pages, **units}


def _units(tables: StateTables) -> dict[ComponentName, list[int]]:
    slot = [] if tables.slot is None else [tables.slot]
    return {
        ComponentName.FULL: [*tables.full],
        ComponentName.WINDOW: [*tables.live_window_pages()],
        ComponentName.RECURRENT: [*slot],
    }
