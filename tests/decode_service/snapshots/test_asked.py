"""Who waits for a request to have a whole state: one at a time, no longer than somebody wants it, if there is room."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from decode_service.snapshots.commands import WriteSnapshot
from decode_service.snapshots.copying import PeriodicCopies
from decode_service.snapshots.images import StateImage, StateImages
from decode_service.snapshots.taking import ASKED_MAX, SnapshotTaking
from decode_service.snapshots.writing import Written
from segue.batch.request import FinishReason
from segue.errors import SnapshotMemoryShort, SnapshotNotReady
from segue.ids import Handle, RequestId
from segue.state.snapshot.names import new_id
from segue.state.tables import StateTables
from tests.decode_service.snapshots.keepers import asking_for, keeper, snapshots_in
from tests.decode_service.snapshots.rooms import Room, room
from tests.decode_service.snapshots.test_over_the_wire import asking as sampled
from tests.decode_service.snapshots.test_over_the_wire import undisturbed
from tests.decode_service.snapshots.test_round_trip import asking, whole


class NoMemory(StateImages):
    """Every image is one too many."""

    error: BaseException = MemoryError()
    tried = 0

    def take(self, tables: StateTables, depth: int) -> StateImage:
        self.tried += 1
        raise self.error


def export_of(handle: int) -> WriteSnapshot:
    return WriteSnapshot(Handle(handle), 0, "export", 0, {}, new_id())


def refusal(answer: "Future[Written]") -> BaseException | None:
    return answer.exception(timeout=0)


def without_memory(made: Room) -> tuple[SnapshotTaking, NoMemory]:
    built, facts = made.loaded.built, made.engine.facts
    assert built is not None
    images = NoMemory(built.storage, built.slots, facts.page_tokens, facts.window)
    return SnapshotTaking(made.engine, images, made.writing, {}, made.done.put), images


def test_whoever_has_left_before_the_state_is_whole_has_withdrawn_an_export(model: Path, tmp_path: Path) -> None:
    spec = asking(150)
    with room(model, tmp_path) as made:
        handle = made.submit(spec)
        assert made.step()
        command = export_of(handle)
        made.taking.ask(command)
        made.taking.turn()
        assert made.taking.waiting
        assert command.answer.cancel()
        made.taking.turn()
        assert not made.taking.waiting
        made.until(handle, 3)
        # Just as the state was to be taken.
        late = export_of(handle)
        late.answer.cancel()
        assert made.taking.take(late)
        made.run()
        assert [one.reason for one in made.ended] == [FinishReason.LENGTH]
        found = made.tokens[handle]
    assert snapshots_in(tmp_path) == []
    assert found == whole(model, tmp_path, spec)


def test_what_is_being_written_is_not_withdrawn(model: Path, tmp_path: Path) -> None:
    with room(model, tmp_path) as made:
        handle = made.submit(asking())
        made.until(handle, 3)
        command = export_of(handle)
        made.taking.ask(command)
        made.taking.turn()
        assert not command.answer.cancel()
        made.settle()
        assert command.answer.result(timeout=0).snapshot_id == command.snapshot_id
    assert snapshots_in(tmp_path) == [command.snapshot_id]


def test_one_waits_for_a_request_at_a_time(model: Path, tmp_path: Path) -> None:
    with room(model, tmp_path) as made:
        handle = made.submit(asking(150))
        assert made.step()
        first, second, third = (export_of(handle) for _ in range(3))
        made.taking.ask(first)
        made.taking.ask(second)
        assert isinstance(refusal(second.answer), SnapshotNotReady)
        # Whoever has left leaves room for another.
        first.answer.cancel()
        made.taking.ask(third)
        made.until(handle, 1)
        made.taking.turn()
        made.settle()
        assert third.answer.result(timeout=0).snapshot_id == third.snapshot_id
    assert snapshots_in(tmp_path) == [third.snapshot_id]


def test_only_so_many_wait_at_all(model: Path, tmp_path: Path) -> None:
    with room(model, tmp_path) as made:
        asked = [export_of(handle) for handle in range(1, ASKED_MAX + 2)]
        for one in asked:
            made.taking.ask(one)
        assert isinstance(refusal(asked[-1].answer), SnapshotNotReady)
        assert not asked[-2].answer.done()
        made.taking.turn()
        assert all("has ended" in str(refusal(one.answer)) for one in asked[:-1])


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_state_for_which_there_is_no_memory_is_refused_at_once(
    model: Path, tmp_path: Path, error: BaseException
) -> None:
    spec = asking()
    with room(model, tmp_path) as made:
        taking, images = without_memory(made)
        images.error = error
        handle = made.submit(spec)
        made.until(handle, 5)
        command = export_of(handle)
        taking.ask(command)
        taking.turn()
        assert isinstance(refused := refusal(command.answer), SnapshotMemoryShort)
        wanted = images.form.bytes(len(spec.prompt) + 4, made.engine.facts.layouts[0].shard)
        assert f"the {wanted} bytes" in str(refused)
        assert not taking.waiting
        made.run()
        found = made.tokens[handle]
    assert found == whole(model, tmp_path, spec)


def test_a_copy_for_which_there_is_no_memory_is_due_again_an_interval_later(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = asking(output=60)
    with room(model, tmp_path) as made:
        taking, images = without_memory(made)
        copies = PeriodicCopies(made.engine, taking, made.writing, every_tokens=20, every_s=0.0)
        handle = made.submit(spec)
        while made.step():
            copies.turn()
        # 37 positions of the prompt, and 59 of the output.
        assert images.tried == 3
        assert "due again later" in caplog.text
        found = made.tokens[handle]
    assert found == whole(model, tmp_path, spec)


@pytest.mark.long
async def test_a_call_that_is_broken_off_withdraws_what_it_asked_for(model: Path, tmp_path: Path) -> None:
    asked = [replace(sampled(output=60), request_id=RequestId(f"q{i}")) for i in range(2)]
    async with keeper(model, tmp_path, {"max_running": 1}) as source:
        handles = [await source.begin(one) for one in asked]
        await source.told(handles[0], 1)
        source.gate.close()
        taking = asyncio.create_task(source.host.worker.take_snapshot(asking_for(handles[1])))
        await asyncio.wait((taking,), timeout=0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        source.gate.open()
        found = [await source.end(handle) for handle in handles]
        assert [source.stream.ended[handle].reason for handle in handles] == [FinishReason.LENGTH] * 2
    assert found[1].tokens == (await undisturbed(model, asked[1]))[0]
    assert snapshots_in(tmp_path) == []
