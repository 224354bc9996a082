"""What is lost on its way: a worker between two words, a reply, a router's patience. A request goes on exactly once."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from segue.batch.request import FinishReason
from segue.errors import SnapshotClaimed, SnapshotFailed, SnapshotNotFound
from segue.ids import Handle, RequestId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.names import MANIFEST, MARKER, new_id
from segue.v1 import worker_pb2 as pb
from segue.wire import Cancel, GenerateSpec
from tests.decode_service.snapshots.keepers import Keeper, asking_for, going_on, keeper, snapshots_in, stalled
from tests.decode_service.snapshots.test_over_the_wire import PROMPT, SEED, asking, exported, joined, undisturbed

pytestmark = pytest.mark.long

ME, OTHER = new_id(), new_id()


def folder_at(path: Path) -> SnapshotFolder:
    return SnapshotFolder.open(SnapshotConfig(folder=str(path)))


async def test_the_next_try_goes_on_from_what_a_dead_worker_had_claimed(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as worker:
        first, taken = await exported(worker, asked)
        folder_at(tmp_path).read(taken.snapshot_id).claim("a worker that died then", ME)
        rest = going_on(asked, taken.snapshot_id, first.tokens)
        with pytest.raises(SnapshotClaimed):
            await worker.begin(replace(rest, claimant=OTHER))
        second = await worker.end(await worker.begin(replace(rest, claimant=ME, attempt=3)))
        assert (await worker.status()).prefill_tokens == PROMPT
    assert joined(first, second) == await undisturbed(model, asked)


async def test_the_next_try_computes_what_a_dead_worker_had_used_up(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as worker:
        first, taken = await exported(worker, asked)
        folder_at(tmp_path).read(taken.snapshot_id).claim("a worker that died then", ME).consume()
        rest = going_on(asked, taken.snapshot_id, first.tokens)
        for claimant in (OTHER, ""):
            with pytest.raises(SnapshotNotFound):
                await worker.begin(replace(rest, claimant=claimant, attempt=3))
        second = await worker.end(await worker.begin(replace(rest, claimant=ME, attempt=4)))
    assert joined(first, second) == await undisturbed(model, asked)


async def test_an_export_that_nobody_knows_of_is_gone_on_from(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as worker:
        first, taken = await exported(worker, asked)
        rest = going_on(asked, taken.snapshot_id, first.tokens)
        doubtful = replace(rest, claimant=ME, snapshot_doubtful=True)
        second = await worker.end(await worker.begin(doubtful))
        assert (await worker.status()).prefill_tokens == PROMPT
        with pytest.raises(SnapshotNotFound):
            await worker.begin(replace(doubtful, claimant=OTHER))
    assert joined(first, second) == await undisturbed(model, asked)


async def test_an_export_that_is_not_there_never_will_be(model: Path, tmp_path: Path) -> None:
    """The worker that writes it is not dead, only cut off: its request goes on there, and nobody listens to it."""
    asked, name = asking(), new_id()
    async with keeper(model, tmp_path) as source, keeper(model, tmp_path) as target:
        handle = await source.begin(asked)
        await source.told(handle, 10)
        known = [token for _, _, token in source.stream.tokens[handle]]
        source.gate.close()
        doubtful = replace(going_on(asked, name, known), claimant=ME, snapshot_doubtful=True)
        second = await target.end(await target.begin(doubtful))
        late = asyncio.create_task(source.router.take_snapshot(replace(asking_for(handle), snapshot_id=name)))
        # Answered after the call has come in.
        await source.router.stub.Describe(pb.DescribeRequest(), timeout=10)
        source.gate.open()
        with pytest.raises(SnapshotFailed, match="too late"):
            await late
        whole = await source.end(handle)
    wanted = await undisturbed(model, asked)
    assert (whole.tokens, whole.logprobs) == wanted
    assert known + second.tokens == wanted[0]
    assert snapshots_in(tmp_path) == []


async def lost_after(source: Keeper, asked: GenerateSpec, path: Path, more: int) -> list[int]:
    """What its router had when the worker was lost: its copies stay, as those of a dead process do."""
    handle = await source.begin(asked)
    await source.told(handle, 50)
    while not any(one.kind == "periodic" for one in folder_at(path).list()):
        await source.told(handle, len(source.stream.tokens[handle]) + 1)
    await source.told(handle, len(source.stream.tokens[handle]) + more)
    return [token for _, _, token in source.stream.tokens[handle]]


async def test_a_lost_stream_goes_on_from_its_newest_copy(model: Path, tmp_path: Path) -> None:
    asked, every = asking(), {"every_tokens": 20}
    async with keeper(model, tmp_path, snapshots=every) as source, keeper(model, tmp_path, snapshots=every) as target:
        known = await lost_after(source, asked, tmp_path, 3)
        with stalled(tmp_path) as over:
            # From here on as if it were dead: it neither writes nor removes anything before the other has looked.
            copies = [path for path in snapshots_in(tmp_path) if (tmp_path / path / MARKER).exists()]
            manifests = [json.loads((tmp_path / path / MANIFEST).read_bytes()) for path in copies]
            newest = max(manifest["state"]["computed"] for manifest in manifests)
            source.gate.close()
            over.set()
        second = await target.end(await target.begin(replace(asked, attempt=2, emitted=tuple(known), claimant=ME)))
        status = await target.status()
        assert known + second.tokens == (await undisturbed(model, asked))[0]
        assert status.retraction.restored == 1
        assert status.prefill_tokens <= len(asked.prompt) + len(known) - newest
        assert status.snapshots.copied > 0
        source.gate.open()
        # The worker was only cut off: in the end its router says that nobody wants the request there.
        await source.stream.send(Cancel(Handle(1), 1))
        await source.end(Handle(1))
    assert snapshots_in(tmp_path) == []


@pytest.mark.parametrize("written", [False, True])
async def test_a_worker_that_is_lost_while_it_exports_leaves_its_copies_to_the_next(
    model: Path, tmp_path: Path, written: bool
) -> None:
    """They are gone on from when the export did not come to be, and removed when it did."""
    asked, every = asking(), {"every_tokens": 20}
    async with keeper(model, tmp_path, snapshots=every) as source, keeper(model, tmp_path, snapshots=every) as target:
        known = await lost_after(source, asked, tmp_path, 3)
        name = (await source.take(Handle(1), copy=True)).snapshot_id if written else new_id()
        source.gate.close()
        copies = {one.snapshot_id for one in folder_at(tmp_path).list() if one.kind == "periodic"}
        rest = replace(going_on(asked, name, known), claimant=ME, snapshot_doubtful=True)
        second = await target.end(await target.begin(rest))
        status = await target.status()
        assert known + second.tokens == (await undisturbed(model, asked))[0]
        assert status.retraction.restored == 1
        assert status.prefill_tokens < len(asked.prompt)
        assert copies
        assert not copies & set(snapshots_in(tmp_path))
        source.gate.open()
        await source.stream.send(Cancel(Handle(1), 1))
        await source.end(Handle(1))
    assert snapshots_in(tmp_path) == []


@pytest.mark.parametrize(("seed", "choice"), [(3, 0), (SEED, 1)])
async def test_a_copy_of_another_choice_is_of_no_use(model: Path, tmp_path: Path, seed: int, choice: int) -> None:
    """It has the same name, and may even have begun with the same tokens."""
    asked, every = asking(), {"every_tokens": 20}
    sampling = replace(asked.sampling, seed=seed, choice=choice)
    other = replace(asked, sampling=sampling, attempt=2)
    async with keeper(model, tmp_path, snapshots=every) as source, keeper(model, tmp_path, snapshots=every) as target:
        known = await lost_after(source, asked, tmp_path, 0)
        second = await target.end(await target.begin(replace(other, emitted=tuple(known[:1]), claimant=ME)))
        assert (await target.status()).retraction.restored == 0
        whole = await target.end(
            await target.begin(replace(other, request_id=RequestId("new"), emitted=tuple(known[:1])))
        )
        assert second.tokens == whole.tokens


async def test_a_copy_that_somebody_asked_for_is_theirs(model: Path, tmp_path: Path) -> None:
    asked, every = asking(), {"every_tokens": 400}
    async with keeper(model, tmp_path, snapshots=every) as source, keeper(model, tmp_path, snapshots=every) as target:
        handle = await source.begin(asked)
        await source.told(handle, 10)
        taken = await source.take(handle, copy=True)
        known = [token for _, _, token in source.stream.tokens[handle]]
        second = await target.end(await target.begin(replace(asked, attempt=2, emitted=tuple(known), claimant=ME)))
        assert (await target.status()).retraction.restored == 0
        assert (await source.end(handle)).reason is FinishReason.LENGTH
    assert known + second.tokens == (await undisturbed(model, asked))[0]
    assert snapshots_in(tmp_path) == [taken.snapshot_id]
