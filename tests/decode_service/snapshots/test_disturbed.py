"""Snapshots while something else happens: clients leave, disks fill up, requests have no state here at that moment."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.retraction.config import RetractionConfig
from segue.batch.lifecycle import Phase
from segue.batch.request import FinishReason
from segue.errors import DeadlineExceeded, SnapshotFolderFull
from segue.ids import RequestId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.wire import Cancel, Finish
from tests.decode_service.snapshots.keepers import asking_for, going_on, keeper, snapshots_in, stalled
from tests.decode_service.snapshots.test_over_the_wire import asking, exported, joined, undisturbed
from tests.handoff.pair import alone, paired
from tests.state.snapshot.test_full_disk import SmallDisk

pytestmark = pytest.mark.long


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    made = SmallDisk(tmp_path)
    try:
        yield made
    finally:
        made.close()


async def test_a_full_disk_leaves_the_request_as_it_was(model: Path, disk: SmallDisk) -> None:
    asked = asking()
    async with keeper(model, disk.root) as source:
        handle = await source.begin(asked)
        await source.told(handle, 10)
        with disk.full(8192 if disk.mounted else 1000):
            for copy in (False, True):
                with pytest.raises(SnapshotFolderFull):
                    await source.take(handle, copy=copy)
        whole = await source.end(handle)
        figures = (await source.status()).snapshots
        assert (figures.exported, figures.copied, figures.failed, figures.bytes) == (0, 0, 2, 0)
        await source.emptied()
    assert (whole.tokens, whole.logprobs) == await undisturbed(model, asked)
    assert snapshots_in(disk.root) == []


@pytest.mark.parametrize("limit", [{"bytes_max": 1000}, {"count_max": 1}])
async def test_a_folder_at_its_limit_refuses_and_the_request_goes_on(
    model: Path, tmp_path: Path, limit: dict[str, object]
) -> None:
    asked = asking()
    async with keeper(model, tmp_path, snapshots=limit) as source:
        handle = await source.begin(asked)
        await source.told(handle, 5)
        if "count_max" in limit:
            await source.take(handle, copy=True)
        with pytest.raises(SnapshotFolderFull):
            await source.take(handle)
        whole = await source.end(handle)
    assert (whole.tokens, whole.logprobs) == await undisturbed(model, asked)


async def test_a_client_that_leaves_while_its_request_is_exported(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as source:
        handle = await source.begin(asked)
        await source.told(handle, 10)
        with stalled(tmp_path) as over:
            taking = asyncio.create_task(source.take(handle))
            while not source.engine.live_requests()[0].pinned:
                await source.status()
            await source.stream.send(Cancel(handle, 1))
            first = await source.end(handle)
            assert first.reason is FinishReason.CANCELLED
            over.set()
            taken = await taking
        await source.emptied()
        # Whoever asked for it has it.
        second = await source.end(await source.begin(going_on(asked, taken.snapshot_id, first.tokens)))
        await source.emptied()
    assert joined(first, second) == await undisturbed(model, asked)
    assert snapshots_in(tmp_path) == []


async def test_a_stop_string_and_a_deadline_end_what_is_being_exported(model: Path, tmp_path: Path) -> None:
    async with keeper(model, tmp_path) as source:
        stopped = await source.begin(asking())
        late = await source.begin(replace(asking(), request_id=RequestId("late"), deadline_s=1.5))
        await source.told(stopped, 10)
        await source.told(late, 10)
        with stalled(tmp_path) as over:
            taking = [asyncio.create_task(source.take(handle)) for handle in (stopped, late)]
            while not all(request.pinned for request in source.engine.live_requests()):
                await source.status()
            await source.stream.send(Finish(stopped, 1, 7))
            assert (await source.end(stopped)).reason is FinishReason.STOP
            ended = await source.end(late)
            assert isinstance(ended.error, DeadlineExceeded)
            over.set()
            await asyncio.gather(*taking)
        await source.emptied()
        source.engine.check()
    assert len(snapshots_in(tmp_path)) == 2


async def test_a_router_that_leaves_while_its_snapshot_is_opened(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as source:
        first, taken = await exported(source, asked)
    async with keeper(model, tmp_path) as target:
        rest = going_on(asked, taken.snapshot_id, first.tokens)
        with stalled(tmp_path):
            beginning = asyncio.create_task(target.begin(rest))
            while not target.host.worker.live:
                await target.status()
            beginning.cancel()
            await asyncio.wait([beginning])
            while target.host.worker.live and not target.host.worker.live[0].leaving:
                await target.status()
        while target.host.worker.live:
            await target.status()
        assert (await target.status()).retraction.restored == 0
        folder = SnapshotFolder.open(SnapshotConfig(folder=str(tmp_path)))
        assert [one.claimed_by for one in folder.list()] == [None]
        second = await target.end(await target.begin(replace(rest, attempt=3)))
    assert joined(first, second) == await undisturbed(model, asked)
    assert snapshots_in(tmp_path) == []


async def test_a_request_off_the_device_is_exported_when_it_is_back(model: Path, tmp_path: Path) -> None:
    short = RetractionConfig(host_bytes=4 << 20, ratio_start=0.0, ratio_floor=0.0)
    asked = [replace(asking(length=40 + 9 * n, output=110), request_id=RequestId(f"q{n}")) for n in range(6)]
    small: dict[str, object] = {"state_bytes": 860_000, "max_len": 256}
    async with keeper(model, tmp_path, small, retraction=short) as source:
        handles = [await source.begin(one) for one in asked]
        source.gate.close()
        away = None
        for _ in range(2000):
            await asyncio.to_thread(source.gate.reached)
            away = next((one for one in source.engine.live_requests() if one.phase is Phase.RETRACTED), None)
            if away is not None:
                break
            source.gate.allow(1)
        assert away is not None
        taking = asyncio.create_task(source.take(away.handle))
        source.gate.open()
        taken = await taking
        found = [await source.end(handle) for handle in handles]
        await source.emptied()
        number = handles.index(away.handle)
        assert found[number].reason is FinishReason.MOVED
        rest = going_on(asked[number], taken.snapshot_id, found[number].tokens)
        found[number].tokens += (await source.end(await source.begin(rest))).tokens
    assert [one.tokens for one in found] == [one.tokens for one in await alone(model, asked, max_len=256)]
    assert snapshots_in(tmp_path) == []


async def test_a_request_whose_prompt_checkpoint_is_still_to_come_leaves_when_it_has(
    model: Path, tmp_path: Path
) -> None:
    """Where it goes on it has no use for a prefill worker."""
    asked = asking(length=150)
    kept, host = SnapshotConfig(folder=str(tmp_path)), RetractionConfig(host_bytes=4 << 20)
    async with paired(model, snapshots=kept, retraction=host) as pair:
        handle = await pair.begin(asked)
        await pair.stream.until(lambda a: handle in a.tokens)
        taken = await pair.router.take_snapshot(asking_for(handle))
        first = await pair.end(handle)
        assert first.reason is FinishReason.MOVED
        await pair.emptied()
        again = await pair.router.generate(
            replace(going_on(asked, taken.snapshot_id, first.tokens), prefill_address=pair.prefill.address)
        )
        second = await pair.end(again)
        await pair.emptied()
        assert (await pair.decode.worker.status()).prefill_tokens == 0
        assert (await pair.decode.worker.status()).transfers.count == 1
    assert joined(first, second) == await undisturbed(model, asked)
    assert snapshots_in(tmp_path) == []
