"""What comes back is what was saved, to the bit, whatever the model, the pages, the depth and the places."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_service.retraction.config import BackendName, RetractionConfig
from decode_service.retraction.copies import All
from segue.state.spec import ComponentName, DType
from tests.decode_service.retraction.devices import (
    ALL,
    FULL,
    HOST_BYTES,
    RECURRENT,
    TRAITS,
    WINDOW,
    Device,
    model_state,
    others,
)

DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT8_E4M3)
BACKENDS = [(components, "") for components in TRAITS] + [(components, "cpu_tensor") for components in TRAITS[:2]]


def id_of(value: object) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)


def round_trip(device: Device, depth: int, **extra: int) -> None:
    """Saves a request, gives its units to others, and brings it back elsewhere."""
    tables = device.running(depth, **extra)
    needed = device.needed(tables, depth)
    rest = others(device.all_units(), needed)
    before = device.bytes_of(rest)
    backup = device.store.save(tables, depth)
    assert backup is not None
    device.store.check()
    device.store.finish()
    assert backup.depth == depth
    assert backup.copied
    saved = device.bytes_of(needed)
    assert backup.bytes == sum(map(len, saved))
    assert device.bytes_of(rest) == before
    assert_tails_are_clear(device, needed, depth)
    device.release(tables)
    device.scribble(1)
    device.scatter(2)
    resumed = device.request(depth)
    places = device.units(resumed)
    rest = others(device.all_units(), places)
    before = device.bytes_of(rest)
    device.store.restore(backup, resumed)
    device.store.finish()
    if resumed.slot is not None:
        device.slots.receive(resumed.slot, depth)
    device.store.require_whole(backup, resumed)
    assert device.bytes_of(device.needed(resumed, depth)) == saved
    assert device.bytes_of(rest) == before
    device.store.free(backup)
    device.store.check()
    assert device.host_is_empty
    device.release(resumed)


def assert_tails_are_clear(device: Device, needed: dict[ComponentName, list[int]], depth: int) -> None:
    used = (depth - 1) % device.page_tokens + 1
    for rank, component in itertools.product(device.storage.ranks, {FULL, WINDOW} & needed.keys()):
        for field in rank.layouts[component].fields:
            for page in needed[component][-1:]:
                view = rank.view(field.tensor.layer, field.tensor.name)
                assert not view[page, :, used:].float().any()


@pytest.mark.parametrize(("components", "backend"), BACKENDS, ids=id_of)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("page_tokens", [1, 64])
def test_every_component_comes_back_to_the_bit(
    components: tuple[ComponentName, ...], dtype: DType, page_tokens: int, backend: str
) -> None:
    for window in (1, 63, 200) if WINDOW in components else (1,):
        state = model_state(components, window=window, dtype=dtype)
        config = RetractionConfig(backend=backend, host_bytes=HOST_BYTES, verify=True)
        device = Device(state, page_tokens, units=40, config=config)
        for depth in (1, 2, 33) if page_tokens == 1 else (1, 63, 64, 65, 128, 130):
            round_trip(device, depth)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("components", TRAITS, ids="+".join)
def test_what_every_rank_has_comes_back_from_its_region_to_its_region(
    components: tuple[ComponentName, ...], tp: int
) -> None:
    """Of four ranks two share each of two head groups: what they have differs here, and comes back as it was."""
    for dtype in DTYPES:
        config = RetractionConfig(host_bytes=HOST_BYTES, verify=True)
        device = Device(model_state(components, dtype=dtype), units=40, config=config, tp=tp)
        device.scatter(tp)
        for depth in (1, 5, 33):
            round_trip(device, depth)


class Reached:
    """A mark of some device."""

    def __init__(self, *, reached: bool) -> None:
        self.reached = reached

    def query(self) -> bool:
        return self.reached


def test_a_copy_has_finished_when_every_device_has_its_part() -> None:
    marks = [Reached(reached=False) for _ in range(2)]
    copied = All(marks)
    assert not copied.query()
    marks[1].reached = True
    assert not copied.query()
    marks[0].reached = True
    assert copied.query()


@settings(max_examples=60)
@given(
    components=st.sampled_from(TRAITS),
    page_tokens=st.sampled_from([1, 2, 5, 8]),
    depth=st.integers(1, 40),
    window=st.integers(0, 45),
    more_pages=st.integers(0, 3),
    below=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_what_the_tables_hold_beyond_the_state_does_not_matter(
    components: tuple[ComponentName, ...],
    page_tokens: int,
    depth: int,
    window: int,
    more_pages: int,
    below: int,
    seed: int,
) -> None:
    device = Device(model_state(components, window=window), page_tokens, units=48)
    device.scatter(seed)
    round_trip(device, depth, more_pages=more_pages, below=below)


def test_a_backup_has_an_entry_per_component_and_knows_the_window() -> None:
    device = Device(model_state(window=6), page_tokens=4)
    backup = device.store.save(device.running(18, below=2), 18)
    assert backup is not None
    assert [copy.component for copy in backup.copies] == list(ALL)
    assert backup.mamba_cpu is not None
    # Positions [12, 18) are in pages 3 and 4.
    assert backup.in_window == [False, False, False, True, True]


def test_a_model_without_recurrent_state_has_no_entry_for_it() -> None:
    device = Device(model_state((FULL, WINDOW)))
    backup = device.store.save(device.running(9), 9)
    assert backup is not None
    assert backup.mamba_cpu is None
    assert {counts.name for counts in device.store.counts()} == {"host_full", "host_window"}


@pytest.mark.parametrize("backend", [BackendName.HOST_POOL, BackendName.CPU_TENSOR])
def test_two_requests_that_are_off_the_device_do_not_share_host_memory(backend: BackendName) -> None:
    config = RetractionConfig(backend=backend.value, host_bytes=HOST_BYTES, verify=True)
    device = Device(model_state((FULL, WINDOW)), config=config)
    depths = (7, 20)
    running = [device.running(depth) for depth in depths]
    backups = [device.store.save(tables, depth) for tables, depth in zip(running, depths, strict=True)]
    saved = [device.bytes_of(device.units(tables)) for tables in running]
    device.store.check()
    device.scribble(1)
    for tables, backup, wanted in zip(running, backups, saved, strict=True):
        assert backup is not None
        device.store.restore(backup, tables)
        device.store.require_whole(backup, tables)
        assert device.bytes_of(device.units(tables)) == wanted


def test_on_the_cpu_a_copy_has_finished_when_the_call_returns() -> None:
    device = Device(model_state())
    tables = device.running(9)
    backup = device.store.save(tables, 9)
    assert backup is not None
    assert backup.copied
    device.store.restore(backup, tables)
    assert backup.copied


def test_a_state_can_be_brought_back_twice() -> None:
    device = Device(model_state((FULL, RECURRENT)))
    tables = device.running(10)
    backup = device.store.save(tables, 10)
    assert backup is not None
    saved = device.bytes_of(device.units(tables))
    for seed in (1, 2):
        device.scribble(seed)
        device.store.restore(backup, tables)
        assert device.bytes_of(device.units(tables)) == saved
