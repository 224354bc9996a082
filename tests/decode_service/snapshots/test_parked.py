"""A worker that drains lets its requests be taken until its budget is over, and ends as soon as none is left."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from segue.batch.request import FinishReason
from segue.errors import WorkerUnavailable
from segue.ids import RequestId
from segue.state.snapshot.names import new_id
from tests.decode_service.snapshots.keepers import asking_for, going_on, keeper, snapshots_in, stalled
from tests.decode_service.snapshots.test_lost import folder_at
from tests.decode_service.snapshots.test_over_the_wire import asking, joined, undisturbed

pytestmark = pytest.mark.long

ME = new_id()


async def test_a_worker_that_drains_ends_when_every_request_was_taken(model: Path, tmp_path: Path) -> None:
    asked = [replace(asking(), request_id=RequestId(f"q{i}")) for i in range(3)]
    async with keeper(model, tmp_path) as source:
        handles = [await source.begin(one) for one in asked]
        for handle in handles:
            await source.told(handle, 5)
        ending = asyncio.create_task(source.host.worker.drain(60))
        # Not all at once: until the last of them the worker drains, and answers.
        parked = [replace(asking_for(handle), parked=True) for handle in handles]
        taken = [await source.router.take_snapshot(one) for one in parked]
        await asyncio.wait_for(ending, 20)
        first = [await source.end(handle) for handle in handles]
        assert [source.stream.ended[handle].reason for handle in handles] == [FinishReason.MOVED] * 3
    assert {one.kind for one in folder_at(tmp_path).list()} == {"parked"}
    async with keeper(model, tmp_path) as target:
        for one, told, snapshot in zip(asked, first, taken, strict=True):
            rest = replace(going_on(one, snapshot.snapshot_id, told.tokens), claimant=ME, snapshot_doubtful=True)
            second = await target.end(await target.begin(rest))
            assert joined(told, second) == await undisturbed(model, one)
        assert (await target.status()).prefill_tokens == 0
    assert snapshots_in(tmp_path) == []


async def test_a_request_that_waits_for_room_is_taken_when_it_has_its_turn(model: Path, tmp_path: Path) -> None:
    """Whoever is taken leaves room for it."""
    asked = [replace(asking(), request_id=RequestId(f"q{i}")) for i in range(2)]
    async with keeper(model, tmp_path, {"max_running": 1}) as source:
        handles = [await source.begin(one) for one in asked]
        await source.told(handles[0], 5)
        ending = asyncio.create_task(source.host.worker.drain(60))
        later = asyncio.create_task(source.take(handles[1]))
        sooner = await source.take(handles[0])
        assert sorted((sooner.snapshot_id, (await later).snapshot_id)) == snapshots_in(tmp_path)
        await asyncio.wait_for(ending, 20)


async def test_what_is_written_when_the_budget_ends_is_there_for_the_next_worker(model: Path, tmp_path: Path) -> None:
    """Its router is told that nobody knows: whether it came to be only the folder does."""
    asked = asking()
    async with keeper(model, tmp_path) as source:
        handle = await source.begin(asked)
        await source.told(handle, 5)
        wanted = asking_for(handle)
        with stalled(tmp_path):
            taking = asyncio.create_task(source.router.take_snapshot(wanted))
            while not source.engine.live_requests()[0].pinned:
                await source.status()
            ending = asyncio.create_task(source.host.worker.drain(0.1))
            with pytest.raises(WorkerUnavailable, match="nobody knows"):
                await taking
        first = await source.end(handle)
        assert isinstance(source.stream.ended[handle].error, WorkerUnavailable)
        await asyncio.wait_for(ending, 20)
    assert snapshots_in(tmp_path) == [wanted.snapshot_id]
    async with keeper(model, tmp_path) as target:
        rest = replace(going_on(asked, wanted.snapshot_id, first.tokens), claimant=ME, snapshot_doubtful=True)
        second = await target.end(await target.begin(rest))
        assert (await target.status()).prefill_tokens == 0
    assert joined(first, second) == await undisturbed(model, asked)
