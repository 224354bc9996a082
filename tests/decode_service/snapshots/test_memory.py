"""Images of states take no more host memory than was allowed, whoever has them, and what is gone counts no more."""

from collections.abc import Callable
from pathlib import Path

import pytest

from decode_service.snapshots.commands import WriteSnapshot
from decode_service.snapshots.images import StateImage
from decode_service.snapshots.memory import ImageMemory
from segue.errors import QueueFull, SnapshotCapacity, SnapshotNotReady
from segue.ids import Handle
from segue.state.snapshot.committed import CommittedSnapshot
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.names import new_id
from segue.state.snapshot.payload import PayloadTensor
from tests.decode_service.snapshots.keepers import going_on, keeper, snapshots_in
from tests.decode_service.snapshots.rooms import room
from tests.decode_service.snapshots.test_over_the_wire import asking as sampled
from tests.decode_service.snapshots.test_over_the_wire import exported, joined, undisturbed
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


class Hungry(SnapshotFolder):
    """Whose snapshots are larger than what the system has left."""

    def read(self, snapshot_id: str) -> CommittedSnapshot:
        return _TooLarge(self._ground, super().read(snapshot_id).manifest)


class _TooLarge(CommittedSnapshot):
    def load(self, rank: int, beat: Callable[[], None] = lambda: None) -> dict[str, PayloadTensor]:
        raise MemoryError


async def test_a_snapshot_that_the_system_has_no_memory_for_stays_and_nothing_is_left_of_the_request(
    model: Path, tmp_path: Path
) -> None:
    asked = sampled()
    async with keeper(model, tmp_path) as source:
        first, taken = await exported(source, asked)
    rest = going_on(asked, taken.snapshot_id, first.tokens)
    async with keeper(model, tmp_path) as target:
        kept = target.host.worker.snapshots
        folder = kept._folder
        kept._opener._folder = Hungry(folder._ground)
        with pytest.raises(SnapshotNotReady, match=r"no memory now for [0-9]+ bytes"):
            await target.begin(rest)
        assert (await target.status()).live_count == 0
        kept._opener._folder = folder
        second = await target.end(await target.begin(rest))
    assert joined(first, second) == await undisturbed(model, asked)
    assert snapshots_in(tmp_path) == []
