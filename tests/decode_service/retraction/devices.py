"""A small device full of random bytes, and requests on it: every bit pattern there is comes by, NaNs included."""

from collections.abc import Sequence

import torch

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.store import RetractionStore, retraction_store
from segue.ids import Page, Slot
from segue.state.layout import Shard, layouts
from segue.state.needs import first_window_page, page_count
from segue.state.pool import Pool
from segue.state.recurrent import SlotStates
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.state.storage import SharedStorage, Storage
from segue.state.tables import StateTables

FULL, WINDOW, RECURRENT = ComponentName
ALL = (FULL, WINDOW, RECURRENT)
TRAITS = ((FULL,), (FULL, WINDOW), (FULL, RECURRENT), ALL)
HOST_BYTES = 1 << 20


def model_state(
    components: Sequence[ComponentName] = ALL, *, window: int = 6, dtype: DType = DType.FLOAT32
) -> ModelState:
    """Layers whose dims, heads and types differ on purpose; with 8-bit keys and values their scales beside them."""
    tensors = []
    for layer, component, groups in ((1, FULL, 2), (3, FULL, 2), (0, WINDOW, 4)):
        if component not in components:
            continue
        reach = window if component is WINDOW else None
        for name in ("k", "v"):
            tensors.append(StateTensor(layer, name, component, groups, (16,), dtype, reach))
            if dtype is DType.FLOAT8_E4M3:
                tensors.append(StateTensor(layer, f"{name}_scale", component, groups, (1,), DType.FLOAT32, reach))
    if RECURRENT in components:
        conv = dtype if dtype is not DType.FLOAT8_E4M3 else DType.BFLOAT16
        tensors.append(StateTensor(2, "conv", RECURRENT, 2, (3, 5), conv))
        tensors.append(StateTensor(2, "matrix", RECURRENT, 2, (8, 4), DType.FLOAT32))
    return ModelState.of(tensors)


class Device:
    """Storage, pools and slots of a model, and a store that backs its requests up."""

    def __init__(
        self,
        state: ModelState,
        page_tokens: int = 4,
        units: int = 32,
        config: RetractionConfig | None = None,
        device: str = "cpu",
        tp: int = 1,
    ) -> None:
        """With `tp` ranks each has a region of its own."""
        self.state = state
        self.page_tokens = page_tokens
        made = layouts(state, page_tokens, Shard(0, tp))
        counts = {layout.component: units for layout in made}
        self.storage = Storage(made, counts, torch.device(device))
        if tp > 1:
            count = torch.cuda.device_count()
            places = [device if device == "cpu" else f"cuda:{rank % count}" for rank in range(tp)]
            self.storage = SharedStorage(
                made, counts, lambda size: [torch.zeros(size, dtype=torch.uint8, device=place) for place in places]
            )
        self.scribble(0)
        self.pools = {layout.component: Pool(layout.component.value, units) for layout in made}
        self.slots = SlotStates(self.storage, units)
        config = config or RetractionConfig(host_bytes=HOST_BYTES, verify=True)
        self.store: RetractionStore = retraction_store(config, "made-up", state, self.storage, self.slots, page_tokens)

    def scribble(self, seed: int) -> None:
        """Other bytes everywhere."""
        for number, region in enumerate(self.storage.regions.tensors):
            region.random_(0, 256, generator=torch.Generator(region.device).manual_seed(100 * number + seed))

    def scatter(self, seed: int) -> None:
        """From now on the pools hand units out in a random order."""
        generator = torch.Generator().manual_seed(seed)
        for pool in self.pools.values():
            units = pool.alloc(pool.free_count)
            pool.free([units[number] for number in torch.randperm(len(units), generator=generator).tolist()])

    def request(self, depth: int, *, more_pages: int = 0, below: int = 0) -> StateTables:
        """Units for a state after `depth` tokens, `more_pages` ahead of it and `below` under its window."""
        tables = StateTables()
        reach = page_count(depth, self.page_tokens) + more_pages
        if (pool := self.pools.get(FULL)) is not None:
            tables.full = [Page(page) for page in pool.alloc(reach)]
        if (pool := self.pools.get(WINDOW)) is not None:
            first = max(0, first_window_page(depth, self.state.window or 0, self.page_tokens) - below)
            tables.window = [None] * first + [Page(page) for page in pool.alloc(reach - first)]
            tables.window_first = first
        if (pool := self.pools.get(RECURRENT)) is not None:
            tables.slot = Slot(pool.alloc(1)[0])
        return tables

    def has_room(self, depth: int, *, more_pages: int = 0) -> bool:
        """Whether `request` would find units enough."""
        reach = page_count(depth, self.page_tokens) + more_pages
        return all(pool.free_count >= (1 if name is RECURRENT else reach) for name, pool in self.pools.items())

    def running(self, depth: int, *, more_pages: int = 0, below: int = 0) -> StateTables:
        """The tables of a request that has computed `depth` tokens."""
        tables = self.request(depth, more_pages=more_pages, below=below)
        if tables.slot is not None:
            self.slots.receive(tables.slot, depth)
        return tables

    def release(self, tables: StateTables) -> None:
        """Everything a request owns goes back to the pools."""
        if tables.slot is not None:
            self.slots.release(tables.slot)
        for component, units in self.units(tables).items():
            self.pools[component].free(units)

    def units(self, tables: StateTables) -> dict[ComponentName, list[int]]:
        """All units of a request, by component."""
        found: dict[ComponentName, list[int]] = {FULL: [*tables.full], WINDOW: [*tables.live_window_pages()]}
        found[RECURRENT] = [] if tables.slot is None else [tables.slot]
        return {component: found[component] for component in self.pools}

    def needed(self, tables: StateTables, depth: int) -> dict[ComponentName, list[int]]:
        """The units of a request that its state after `depth` tokens lies in."""
        stop = page_count(depth, self.page_tokens)
        first = first_window_page(depth, self.state.window or 0, self.page_tokens)
        window: list[int] = []
        if self.state.window:
            window += [page for page in tables.window[first:stop] if page is not None]
        found: dict[ComponentName, list[int]] = {FULL: [*tables.full[:stop]], WINDOW: window}
        found[RECURRENT] = [] if tables.slot is None else [tables.slot]
        return {component: found[component] for component in self.pools}

    def bytes_of(self, units: dict[ComponentName, list[int]]) -> list[bytes]:
        """The bytes of units, in order, of one rank after another."""
        return [
            rank.unit_bytes(component, unit).cpu().numpy().tobytes()
            for rank in self.storage.ranks
            for component, numbers in units.items()
            for unit in numbers
        ]

    def all_units(self) -> dict[ComponentName, list[int]]:
        """Every unit there is, sinks included."""
        return {component: list(range(pool.capacity)) for component, pool in self.pools.items()}

    @property
    def host_is_empty(self) -> bool:
        return all(counts.held == 0 for counts in self.store.counts())


def others(
    whole: dict[ComponentName, list[int]], without: dict[ComponentName, list[int]]
) -> dict[ComponentName, list[int]]:
    """Units of `whole` that are not in `without`."""
    return {name: [unit for unit in units if unit not in without[name]] for name, units in whole.items()}
