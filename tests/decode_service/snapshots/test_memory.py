"""Images of states take no more host memory than was allowed, whoever has them, and what is gone counts no more."""

from pathlib import Path

import pytest

from decode_service.snapshots.commands import WriteSnapshot
from decode_service.snapshots.images import StateImage
from decode_service.snapshots.memory import ImageMemory
from segue.errors import QueueFull, SnapshotCapacity, SnapshotNotReady
from segue.ids import Handle
from segue.state.snapshot.names import new_id
from tests.decode_service.snapshots.rooms import room
from tests.decode_service.snapshots.test_round_trip import Models, asking, models, whole

__all__ = ["models"]


def test_an_image_counts_until_nobody_has_it() -> None:
    memory = ImageMemory(100)
    image = StateImage(1, ())
    with memory.reserve(60) as reserved:
        reserved.hold(image)
    with pytest.raises(QueueFull, match=r"60 bytes .*, 50 more .*host_bytes allows 100"):
        memory.reserve(50)
    with memory.reserve(40):
        assert memory.bytes == 100
    other = image
    del image
    assert memory.bytes == 60
    del other
    assert memory.bytes == 0


def test_what_was_reserved_for_an_image_that_was_not_made_is_free() -> None:
    memory = ImageMemory(100)
    with pytest.raises(MemoryError), memory.reserve(100):
        raise MemoryError
    assert memory.bytes == 0


def test_what_is_larger_than_all_of_it_never_comes() -> None:
    with pytest.raises(SnapshotCapacity, match="101 bytes"):
        ImageMemory(100).reserve(101)


def test_a_request_for_whose_image_there_is_no_memory_runs_on(models: Models, tmp_path: Path) -> None:
    model, asked = models("all"), asking()
    with room(model, tmp_path, image_bytes=1000) as source:
        handle = source.submit(asked)
        source.until(handle, 5)
        with pytest.raises(SnapshotNotReady, match="host_bytes"):
            source.taking.take(WriteSnapshot(handle, 0, "export", 0, {}, new_id()))
        source.run()
        assert source.tokens[handle] == whole(model, tmp_path, asked)
        assert source.memory.bytes == 0


def test_a_snapshot_for_which_there_is_no_memory_stays(models: Models, tmp_path: Path) -> None:
    model, asked = models("all"), asking()
    with room(model, tmp_path) as source:
        source.until(source.submit(asked), 5)
        name = source.take(Handle(1)).snapshot_id
        emitted = [token.token_id for token in source.tokens[Handle(1)]]
        assert source.memory.bytes == 0
    with room(model, tmp_path, image_bytes=1000) as target, pytest.raises(SnapshotCapacity, match="host_bytes"):
        target.restore(asked, name, emitted)
    with room(model, tmp_path) as target:
        handle = target.restore(asked, name, emitted)
        assert target.memory.bytes > 0
        target.run()
        assert target.memory.bytes == 0
        assert source.tokens[Handle(1)] + target.tokens[handle] == whole(model, tmp_path, asked)
