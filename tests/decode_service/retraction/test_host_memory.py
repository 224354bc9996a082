"""Host memory is one budget: all of it is used, nothing beyond, and every byte comes back."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.extents import Extent, Extents, cut
from decode_service.retraction.free_memory import SystemFiles, available_bytes
from decode_service.retraction.host_pool import HostPool
from decode_service.retraction.memory import host_arena
from segue.errors import ConfigError
from segue.peering import ArenaPart
from segue.state.spec import ComponentName
from segue.state.tables import StateTables
from tests.decode_service.retraction.devices import ALL, FULL, WINDOW, Device, model_state

CPU = torch.device("cpu")


def bytes_at(device: Device, tables: StateTables, depth: int) -> int:
    return sum(map(len, device.bytes_of(device.needed(tables, depth))))


@pytest.mark.parametrize("components", [(FULL, WINDOW), ALL], ids="+".join)
def test_a_victim_that_finds_no_room_takes_nothing(components: tuple[ComponentName, ...]) -> None:
    probe = Device(model_state(components))
    size = bytes_at(probe, probe.running(18), 18)
    host_bytes = 2 * size
    if components == (FULL, WINDOW):
        # The device has as many pages of the one as of the other, and so has the host: 10 are enough for two requests.
        host_bytes = 10 * sum(layout.unit_bytes for layout in probe.storage.layouts.values())
    device = Device(model_state(components), config=RetractionConfig(host_bytes=host_bytes))
    first, second, third = (device.running(18) for _ in range(3))
    backups = [device.store.save(first, 18), device.store.save(second, 18)]
    before = device.store.counts()
    untouched = device.bytes_of(device.units(third))
    assert device.store.save(third, 18) is None
    assert device.store.counts() == before
    assert device.bytes_of(device.units(third)) == untouched
    for backup in backups:
        assert backup is not None
        device.store.free(backup)
    assert device.host_is_empty
    again = device.store.save(third, 18)
    assert again is not None
    assert again.bytes == size


@pytest.mark.parametrize("components", [(FULL,), (FULL, WINDOW), ALL], ids="+".join)
def test_without_host_memory_every_victim_is_recomputed(components: tuple[ComponentName, ...]) -> None:
    device = Device(model_state(components), config=RetractionConfig(host_bytes=0))
    assert device.store.save(device.running(5), 5) is None
    device.store.check()
    assert device.host_is_empty


def test_a_backup_is_given_back_once_and_not_used_after() -> None:
    device = Device(model_state())
    tables = device.running(5)
    backup = device.store.save(tables, 5)
    assert backup is not None
    device.store.free(backup)
    with pytest.raises(AssertionError, match="given back before"):
        device.store.free(backup)
    with pytest.raises(AssertionError, match="given back before"):
        device.store.restore(backup, tables)


def test_holes_are_enough_for_a_request_that_fits_none_of_them() -> None:
    probe = Device(model_state(ALL))
    size = bytes_at(probe, probe.running(18), 18)
    large = bytes_at(probe, probe.running(40), 40)
    assert 2 * size >= large > size
    device = Device(model_state(ALL), units=48, config=RetractionConfig(host_bytes=4 * size, verify=True))
    short = [device.running(18) for _ in range(4)]
    backups = [device.store.save(tables, 18) for tables in short]
    for backup in backups[::2]:
        assert backup is not None
        device.store.free(backup)
    for tables in short[::2]:
        device.release(tables)
    tables = device.running(40)
    backup = device.store.save(tables, 40)
    assert backup is not None
    assert len(backup.full.extents if backup.full else ()) > 1
    saved = device.bytes_of(device.units(tables))
    device.store.check()
    device.scribble(1)
    device.store.restore(backup, tables)
    device.store.require_whole(backup, tables)
    assert device.bytes_of(device.units(tables)) == saved


def test_pages_of_the_host_are_split_as_those_of_the_device() -> None:
    parts = [ArenaPart(FULL, 0, 1024, 301), ArenaPart(WINDOW, 0, 512, 101)]
    pool = HostPool(10 * (3 * 1024 + 512), parts, 3, CPU)
    assert {counts.name: counts.free for counts in pool.counts()} == {"host_full": 30, "host_window": 10}


def test_a_small_host_has_window_pages_for_one_request_and_gives_the_rest_to_full_pages() -> None:
    parts = [ArenaPart(FULL, 0, 1024, 3001), ArenaPart(WINDOW, 0, 512, 101)]
    pool = HostPool(64 * 1024 + 100, parts, 4, CPU)
    assert {counts.name: counts.free for counts in pool.counts()} == {"host_full": 62, "host_window": 4}
    assert pool.arena.numel() == 64 * 1024


def test_the_arena_is_no_larger_than_its_budget() -> None:
    assert host_arena(1000, CPU).numel() == 960
    assert not host_arena(1000, CPU).any()


def system(folder: Path, available_kb: int, **groups: tuple[str, int, int]) -> SystemFiles:
    """Files of a system, with control groups by path: limit, usage, and what of that is cached of files."""
    (folder / "meminfo").write_text(f"MemTotal:  99999999 kB\nMemFree:  7 kB\nMemAvailable:  {available_kb} kB\n")
    (folder / "cgroup").write_text("4:memory:/other\n0::/pod/worker\n")
    for path, (limit, usage, cached) in groups.items():
        group = folder / "groups" / {"root": "", "pod": "pod", "worker": "pod/worker"}[path]
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{usage}\n")
        (group / "memory.stat").write_text(f"anon 5\ninactive_file {cached - 1}\nactive_file 1\nfile 9000\n")
    return SystemFiles(meminfo=folder / "meminfo", cgroup=folder / "cgroup", cgroups=folder / "groups")


def test_more_memory_than_is_available_is_refused_before_it_is_written_to(tmp_path: Path) -> None:
    files = system(tmp_path, 64)
    assert host_arena(64 * 1024, CPU, files).numel() == 64 * 1024
    with pytest.raises(ConfigError, match=r"retraction\.host_bytes is 65600, and 65536 bytes are available"):
        host_arena(65_600, CPU, files)


def test_what_a_control_group_has_left_counts_where_it_is_less(tmp_path: Path) -> None:
    files = system(tmp_path, 64, worker=("max", 100, 50), pod=("3000", 2500, 500), root=("9000", 100, 1))
    assert available_bytes(files) == 1000
    with pytest.raises(ConfigError, match="is 1024, and 1000 bytes"):
        host_arena(1024, CPU, files)
    assert available_bytes(system(tmp_path, 64, pod=("900", 1000, 1))) == 0
    assert available_bytes(system(tmp_path, 64, pod=("max", 1000, 1))) == 9000 - 100 + 1
    assert available_bytes(system(tmp_path, 64, pod=("max", 1000, 1), root=("max", 1000, 1))) == 64 * 1024


def test_where_the_system_does_not_tell_nothing_is_refused(tmp_path: Path) -> None:
    files = SystemFiles(meminfo=tmp_path / "none", cgroup=tmp_path / "none", cgroups=tmp_path)
    assert available_bytes(files) is None
    assert host_arena(1000, CPU, files).numel() == 960


# Byte ranges


@given(st.lists(st.integers(1, 9), max_size=12), st.data())
def test_ranges_are_refused_only_when_fewer_bytes_are_free(lengths: list[int], data: st.DataObject) -> None:
    extents = Extents(32)
    held: list[tuple[Extent, ...]] = []
    for length in lengths:
        free = extents.free_bytes
        taken = extents.alloc(length)
        assert (taken is None) == (length > free)
        if taken is not None:
            assert sum(extent.length for extent in taken) == length
            held.append(taken)
        gives_back = data.draw(st.booleans())
        if held and gives_back:
            extents.free(held.pop(data.draw(st.integers(0, len(held) - 1))))
        extents.check([extent for group in held for extent in group])


def test_the_smallest_hole_that_fits_is_taken_whole() -> None:
    extents = Extents(30)
    groups = [extents.alloc(length) for length in (8, 2, 4, 2, 14)]
    for group in (groups[0], groups[2]):
        assert group is not None
        extents.free(group)
    assert extents.alloc(3) == (Extent(10, 3),)
    assert extents.alloc(9) == (Extent(0, 8), Extent(13, 1))


def test_neighbouring_holes_are_joined() -> None:
    extents = Extents(12)
    groups = [extents.alloc(4) for _ in range(3)]
    for group in (groups[0], groups[2], groups[1]):
        assert group is not None
        extents.free(group)
    assert extents.alloc(12) == (Extent(0, 12),)


def test_what_is_free_is_not_freed_again() -> None:
    extents = Extents(12)
    assert extents.alloc(8) is not None
    extents.free([Extent(2, 2)])
    for extent in (Extent(2, 2), Extent(1, 2), Extent(3, 2), Extent(8, 1)):
        with pytest.raises(AssertionError, match="free already"):
            extents.free([extent])


def test_ranges_are_shared_out_in_order() -> None:
    shares = cut([Extent(0, 5), Extent(10, 4), Extent(20, 3)], [4, 7, 0, 1])
    assert shares == [(Extent(0, 4),), (Extent(4, 1), Extent(10, 4), Extent(20, 2)), (), (Extent(22, 1),)]
