"""What came back spoilt is found, when it is looked for; what a test drops is gone and nothing else."""

import pytest
import torch

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.copies import DirectCopies
from decode_service.retraction.cpu_tensor import CpuTensors
from decode_service.retraction.store import RetractionStore
from kv_transfer.arena_map import map_arena
from segue.errors import DigestMismatch
from segue.state.spec import ComponentName
from tests.decode_service.retraction.devices import ALL, FULL, HOST_BYTES, RECURRENT, WINDOW, Device, model_state

DEPTH = 18
POSITIONS = {
    FULL: r"full positions \[0, 18\)",
    WINDOW: r"window positions \[12, 18\)",
    RECURRENT: r"recurrent positions",
}


def spoilable(*, verify: bool) -> tuple[Device, torch.Tensor]:
    """A device, and the host memory that its store copies to."""
    device = Device(model_state())
    arena_map = map_arena(device.storage)
    memory = CpuTensors(HOST_BYTES, {part.component: part.unit_bytes for part in arena_map.parts}, torch.device("cpu"))
    config = RetractionConfig(host_bytes=HOST_BYTES, verify=verify)
    copies = DirectCopies(device.storage, arena_map, memory.arena)
    device.store = RetractionStore(
        config, device.state, device.storage, device.slots, device.page_tokens, memory, copies
    )
    return device, memory.arena


@pytest.mark.parametrize("component", ALL)
def test_a_flipped_byte_in_host_memory_is_found_and_named(component: ComponentName) -> None:
    device, arena = spoilable(verify=True)
    tables = device.running(DEPTH)
    backup = device.store.save(tables, DEPTH)
    assert backup is not None
    (copy,) = [copy for copy in backup.copies if copy.component is component]
    # The first byte of the last page or of the slot: the first token of a page that the window meets.
    arena[copy.extents[0].start + (copy.stop - copy.first - 1) * device.storage.layouts[component].unit_bytes] ^= 1
    device.store.restore(backup, tables)
    with pytest.raises(DigestMismatch, match=POSITIONS[component] + r".*came back from host memory with digest"):
        device.store.require_whole(backup, tables)


def test_what_nobody_will_read_is_not_compared() -> None:
    device, arena = spoilable(verify=True)
    depth = 15
    tables = device.running(depth)
    backup = device.store.save(tables, depth)
    assert backup is not None
    assert backup.window is not None
    # Page 2 of the window holds positions [8, 12), of which the first is out of it.
    assert backup.window.first == 2
    arena[backup.window.extents[0].start] ^= 1
    device.store.restore(backup, tables)
    device.storage.view(1, "k")[tables.full[-1], :, depth % device.page_tokens :] = 1
    device.store.require_whole(backup, tables)


def test_nothing_is_compared_without_the_setting() -> None:
    device, arena = spoilable(verify=False)
    tables = device.running(DEPTH)
    backup = device.store.save(tables, DEPTH)
    assert backup is not None
    assert backup.digests == ()
    arena.zero_()
    device.store.restore(backup, tables)
    device.store.require_whole(backup, tables)


@pytest.mark.parametrize("dropped", ALL)
def test_a_component_that_a_test_drops_comes_back_zero_filled_and_no_other(dropped: ComponentName) -> None:
    device = Device(model_state(), config=RetractionConfig(host_bytes=HOST_BYTES, test_drop=dropped.value))
    tables = device.running(DEPTH)
    backup = device.store.save(tables, DEPTH)
    assert backup is not None
    saved = {name: device.bytes_of({name: units}) for name, units in device.units(tables).items()}
    device.scribble(1)
    device.store.restore(backup, tables)
    for name, units in device.units(tables).items():
        found = device.bytes_of({name: units})
        assert found == ([bytes(len(one)) for one in found] if name is dropped else saved[name])


def test_a_slot_at_another_depth_is_not_saved() -> None:
    device = Device(model_state())
    tables = device.running(DEPTH, below=1)
    with pytest.raises(AssertionError, match="stands at 18"):
        device.store.save(tables, DEPTH - 1)
    assert tables.slot is not None
    device.slots.advance(tables.slot, DEPTH + 1)
    with pytest.raises(AssertionError, match="stands at 19"):
        device.store.save(tables, DEPTH)


def test_units_that_are_not_those_of_the_backup_are_not_written() -> None:
    device = Device(model_state())
    backup = device.store.save(device.running(DEPTH), DEPTH)
    assert backup is not None
    below = device.request(DEPTH, below=1)
    with pytest.raises(AssertionError, match="not those of the backup"):
        device.store.restore(backup, below)
    shorter = device.request(DEPTH - 4)
    with pytest.raises(AssertionError, match="ends before the state does"):
        device.store.restore(backup, shorter)
