"""When copies by policy are due: whatever the loss of a worker would cost is counted, prompt and continuation too."""

import asyncio
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from decode_service.snapshots.copying import PeriodicCopies
from decode_service.snapshots.service import LOADS_MAX, Snapshots
from segue.ids import WorkerId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from tests.decode_service.snapshots.rooms import Room, room
from tests.decode_service.snapshots.test_round_trip import asking


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def copies(made: Room, clock: Clock | None = None, *, every_tokens: int = 0, every_s: float = 0.0) -> PeriodicCopies:
    return PeriodicCopies(
        made.engine, made.taking, made.writing, every_tokens=every_tokens, every_s=every_s, clock=clock or Clock()
    )


def kept(folder: Path) -> list[int]:
    """How many positions each copy has."""
    return sorted(one.computed or 0 for one in SnapshotFolder.open(SnapshotConfig(folder=str(folder))).list())


def copied(made: Room, by_policy: PeriodicCopies) -> bool:
    """Whether a copy was due, which is then written."""
    before = made.taking.figures.copied
    by_policy.turn()
    made.settle()
    return made.taking.figures.copied > before


async def test_a_copy_that_is_read_too_late_is_given_back(model: Path, tmp_path: Path) -> None:
    asked, gate = asking(), threading.Event()
    with room(model, tmp_path) as made:
        handle = made.submit(asked)
        made.until(handle, 10)
        by_policy = copies(made, every_tokens=20)
        assert copied(made, by_policy)
        rest = replace(asked, emitted=tuple(token.token_id for token in made.tokens[handle]))
        config = SnapshotConfig(folder=str(tmp_path), every_tokens=20)
        snapshots = Snapshots(config, WorkerId("next"), find_copy_s=0.2)
        snapshots.taking(made.loaded, made.done.put)
        # The copy is found, and nobody is there to read it.
        reading = [snapshots._loads.begin(gate.wait, 20) for _ in range(LOADS_MAX)]
        assert await snapshots.opened(rest) is None
        assert not any(one.done() for one in reading)
        gate.set()
        async with asyncio.timeout(10):
            while (found := await snapshots.opened(rest)) is None:
                pass
        assert found.image.depth == len(asked.prompt) + 9
        await snapshots.release(found)
        await snapshots.close()


def test_a_prompt_longer_than_the_interval_is_copied_as_soon_as_it_decodes(model: Path, tmp_path: Path) -> None:
    with room(model, tmp_path) as made:
        by_policy = copies(made, every_tokens=100)
        handle = made.submit(asking(150, output=120))
        while handle not in made.tokens:
            assert not copied(made, by_policy)
            assert made.step()
        assert copied(made, by_policy)
        assert kept(tmp_path) == [150]
        # The next one is due an interval later, and takes its place.
        made.until(handle, 100)
        assert not copied(made, by_policy)
        made.until(handle, 101)
        assert copied(made, by_policy)
        made.run()
        by_policy.ended(handle)
    assert kept(tmp_path) == []


def test_seconds_are_counted_from_when_a_request_began_here(model: Path, tmp_path: Path) -> None:
    with room(model, tmp_path) as made:
        clock = Clock()
        by_policy = copies(made, clock, every_s=10.0)
        handle = made.submit(asking(150))
        # It waits: nothing is lost yet.
        assert not copied(made, by_policy)
        clock.now = 100.0
        assert made.step()
        assert not copied(made, by_policy)
        made.until(handle, 1)
        clock.now = 109.0
        assert not copied(made, by_policy)
        clock.now = 110.0
        assert copied(made, by_policy)
        assert not copied(made, by_policy)


def test_who_goes_on_from_a_copy_that_is_used_up_with_that_is_copied_again_at_once(model: Path, tmp_path: Path) -> None:
    spec = asking()
    with room(model, tmp_path) as made:
        handle = made.submit(spec)
        made.until(handle, 10)
        written = made.take(handle, copy=True)
        told = [token.token_id for token in made.tokens[handle]]
    with room(model, tmp_path) as made:
        by_policy = copies(made, every_tokens=20)
        made.restore(spec, written.snapshot_id, told)
        assert kept(tmp_path) == []
        assert made.step()
        assert copied(made, by_policy)
        assert kept(tmp_path) == [len(spec.prompt) + len(told)]
