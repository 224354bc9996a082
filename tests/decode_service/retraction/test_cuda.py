"""Copies from and to a CUDA device: beside what is computed, after what was computed, and finished when they say so."""

from collections.abc import Iterator

import pytest
import torch

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.copies import STAGING_BYTES, STRAIGHT_BYTES_CUDA
from decode_service.retraction.memory import host_arena
from segue.errors import ConfigError
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.state.tables import StateTables
from tests.decode_service.retraction.devices import ALL, FULL, HOST_BYTES, RECURRENT, TRAITS, Device, model_state
from tests.decode_service.retraction.test_round_trip import round_trip

pytestmark = pytest.mark.gpu

# About 0.1 s on any device: long enough to look at what must not have happened meanwhile.
SLEEP_CYCLES = 200_000_000
DEPTH = 18


@pytest.fixture(autouse=True)
def settled() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def large_state() -> ModelState:
    """Pages of 1 MiB at 64 tokens, and a slot that is worth a copy of its own."""
    tensors = [StateTensor(0, name, FULL, 4, (512,), DType.FLOAT32) for name in ("k", "v")]
    matrix = (STRAIGHT_BYTES_CUDA // 4 // 4, 2)
    return ModelState.of([*tensors, StateTensor(1, "matrix", RECURRENT, 4, matrix, DType.FLOAT32)])


@pytest.mark.parametrize("components", TRAITS, ids="+".join)
@pytest.mark.parametrize("page_tokens", [1, 4, 64])
def test_every_component_comes_back_to_the_bit(components: tuple[ComponentName, ...], page_tokens: int) -> None:
    config = RetractionConfig(host_bytes=HOST_BYTES, verify=True)
    device = Device(model_state(components), page_tokens, config=config, device="cuda")
    for depth in (1, 5, 18):
        round_trip(device, depth)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("components", TRAITS, ids="+".join)
def test_what_every_rank_has_comes_back_to_the_bit(components: tuple[ComponentName, ...], tp: int) -> None:
    """From regions of their own, on all devices there are."""
    config = RetractionConfig(host_bytes=HOST_BYTES, verify=True)
    device = Device(model_state(components), config=config, device="cuda", tp=tp)
    for depth in (1, 5, 18):
        round_trip(device, depth)


@pytest.mark.parametrize("scattered", [True, False])
def test_more_than_the_staging_memory_holds_comes_back_to_the_bit(scattered: bool) -> None:
    pages = 2 * STAGING_BYTES // (1 << 20) + 3
    config = RetractionConfig(host_bytes=256 << 20, verify=True)
    device = Device(large_state(), 64, units=2 * pages, config=config, device="cuda")
    if scattered:
        device.scatter(1)
    round_trip(device, 64 * pages - 5)


def test_a_backup_is_of_what_was_computed_before_and_is_copied_only_when_it_is() -> None:
    device, tables = running()
    torch.cuda._sleep(SLEEP_CYCLES)
    for component, units in device.units(tables).items():
        for unit in units:
            device.storage.unit_bytes(component, unit).fill_(7)
    backup = device.store.save(tables, DEPTH)
    assert backup is not None
    assert not backup.copied
    with pytest.raises(AssertionError, match="under a copy"):
        device.store.free(backup)
    device.store.finish()
    assert backup.copied
    saved = device.bytes_of(device.needed(tables, DEPTH))
    assert any(7 in one for one in saved)
    device.scribble(1)
    device.store.restore(backup, tables)
    device.store.finish()
    assert device.bytes_of(device.needed(tables, DEPTH)) == saved


def test_what_was_computed_before_a_restore_still_sees_the_units_as_they_were() -> None:
    device, tables = running()
    backup = device.store.save(tables, DEPTH)
    assert backup is not None
    device.store.finish()
    page = device.storage.unit_bytes(FULL, tables.full[0])
    page.fill_(7)
    torch.cuda._sleep(SLEEP_CYCLES)
    seen = page.clone()
    device.store.restore(backup, tables)
    assert not backup.copied
    device.store.finish()
    assert backup.copied
    assert bool((seen == 7).all())
    assert not bool((page == 7).all())


def test_what_is_computed_meanwhile_does_not_wait_for_a_copy() -> None:
    config = RetractionConfig(host_bytes=1 << 30)
    device = Device(large_state(), 64, units=600, config=config, device="cuda")
    device.scatter(1)
    tables = device.running(64 * 550)
    ones = torch.ones(8, device="cuda")
    # The first use of a kernel waits for whatever is under way.
    warm = device.store.save(tables, 64 * 550)
    assert warm is not None
    assert ones.sum().item() == 8
    device.store.finish()
    device.store.free(warm)
    backup = device.store.save(tables, 64 * 550)
    assert backup is not None
    ones.sum()
    torch.cuda.current_stream().synchronize()
    assert not backup.copied
    device.store.finish()
    assert backup.copied


@pytest.mark.parametrize("dropped", ALL)
def test_a_component_that_a_test_drops_comes_back_zero_filled_and_no_other(dropped: ComponentName) -> None:
    config = RetractionConfig(host_bytes=HOST_BYTES, test_drop=dropped.value)
    device = Device(model_state(), config=config, device="cuda")
    tables = device.running(DEPTH)
    backup = device.store.save(tables, DEPTH)
    assert backup is not None
    saved = {name: device.bytes_of({name: units}) for name, units in device.units(tables).items()}
    device.scribble(1)
    device.store.restore(backup, tables)
    device.store.finish()
    for name, units in device.units(tables).items():
        found = device.bytes_of({name: units})
        assert found == ([bytes(len(one)) for one in found] if name is dropped else saved[name])


def test_host_memory_is_pinned_to_the_byte_and_can_be_had_again() -> None:
    for _ in range(3):
        arena = host_arena((48 << 20) + 64, torch.device("cuda"))
        assert arena.numel() == (48 << 20) + 64
        assert arena.is_pinned()


def test_more_host_memory_than_there_is_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"retraction\.host_bytes"):
        host_arena(1 << 50, torch.device("cuda"))


def running() -> tuple[Device, StateTables]:
    """Without digests, which wait for the device."""
    device = Device(model_state(), config=RetractionConfig(host_bytes=HOST_BYTES), device="cuda")
    tables = device.running(DEPTH)
    # The first use of a kernel takes long.
    warm = device.store.save(tables, DEPTH)
    assert warm is not None
    device.store.finish()
    device.store.free(warm)
    return device, tables
