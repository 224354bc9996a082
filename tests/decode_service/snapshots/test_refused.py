"""Whatever is wrong with going on from a snapshot is a typed refusal: it takes nothing, the snapshot stays whole."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from segue.errors import (
    ServingError,
    SnapshotCapacity,
    SnapshotClaimed,
    SnapshotLayoutMismatch,
    SnapshotNotFound,
    SnapshotNotReady,
    SnapshotsOff,
    SnapshotSourceMismatch,
)
from segue.ids import Handle, RequestId
from segue.wire import GenerateSpec
from tests.decode_service.router_end import RouterEnd
from tests.decode_service.snapshots.keepers import Keeper, going_on, keeper, snapshots_in
from tests.decode_service.snapshots.test_over_the_wire import asking, exported, joined, undisturbed
from tests.handoff.pair import Answer

pytestmark = pytest.mark.long


class Exported:
    """A request that was taken out of a worker that is no more."""

    def __init__(self, folder: Path, asked: GenerateSpec, first: Answer, snapshot_id: str) -> None:
        self.folder, self.asked, self.first, self.snapshot_id = folder, asked, first, snapshot_id

    @property
    def rest(self) -> GenerateSpec:
        return going_on(self.asked, self.snapshot_id, self.first.tokens)


@pytest.fixture
async def taken(model: Path, tmp_path: Path) -> AsyncIterator[Exported]:
    """At the end of each test it goes on as if nobody had tried before."""
    asked = asking()
    async with keeper(model, tmp_path) as source:
        first, written = await exported(source, asked)
    one = Exported(tmp_path, asked, first, written.snapshot_id)
    yield one
    async with keeper(model, tmp_path) as target:
        second = await target.end(await target.begin(one.rest))
        assert (await target.status()).prefill_tokens == 0
    # A test may have taken it out once more, at another token.
    assert joined(one.first, second) == await undisturbed(model, asked)
    assert snapshots_in(tmp_path) == []


async def refused(target: Keeper, asked: GenerateSpec, error: type[ServingError], match: str | None = None) -> None:
    with pytest.raises(error, match=match):
        await target.begin(asked)
    await target.emptied()
    assert target.engine.idle
    assert (await target.status()).retraction.restored == 0


async def test_what_does_not_belong_to_the_request(model: Path, taken: Exported) -> None:
    rest = taken.rest
    async with keeper(model, taken.folder) as target:
        for name in ("f" * 32, "../" + taken.snapshot_id, taken.snapshot_id.upper(), "x" * 4000):
            await refused(target, replace(rest, snapshot_id=name), SnapshotNotFound)
        await refused(target, replace(rest, prompt=(*rest.prompt[:-1], 3)), SnapshotSourceMismatch, "another prompt")
        await refused(target, replace(rest, cache_salt="theirs"), SnapshotSourceMismatch, "another prompt")
        wrong = (*rest.emitted[:-1], (rest.emitted[-1] + 1) % 90)
        await refused(target, replace(rest, emitted=wrong), SnapshotSourceMismatch, "another output")
        sampling = replace(rest.sampling, seed=5)
        await refused(target, replace(rest, sampling=sampling), SnapshotSourceMismatch, "sampling")
        sampling = replace(rest.sampling, choice=1)
        await refused(target, replace(rest, sampling=sampling), SnapshotSourceMismatch, "sampling")
    assert snapshots_in(taken.folder) == [taken.snapshot_id]


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"deterministic": False}, SnapshotSourceMismatch, "compute_dtype"),
        ({"dtype": "bfloat16", "deterministic": False}, SnapshotSourceMismatch, "compute_dtype"),
        ({"kv_dtype": "fp8"}, SnapshotLayoutMismatch, "state of full"),
        ({"max_len": 128}, SnapshotCapacity, "does not fit here"),
    ],
)
async def test_another_worker(
    model: Path, taken: Exported, changes: dict[str, object], error: type[ServingError], match: str
) -> None:
    async with keeper(model, taken.folder, changes) as target:
        await refused(target, taken.rest, error, match)


async def test_pools_that_just_hold_one_request_are_no_reason(model: Path, taken: Exported) -> None:
    """Whoever waits for them is let in when they are free."""
    small: dict[str, object] = {"state_bytes": 350_000, "max_running": 1, "max_len": 344}
    async with keeper(model, taken.folder, small) as target:
        earlier = await target.begin(replace(asking(output=150), request_id=RequestId("earlier")))
        await target.told(earlier, 1)
        second = await target.end(await target.begin(taken.rest))
        assert (await target.status()).retraction.restored == 1
        await target.emptied()
        before = await target.end(earlier)
    assert joined(taken.first, second) == await undisturbed(model, taken.asked)
    assert before.tokens == (await undisturbed(model, asking(output=150)))[0]
    async with keeper(model, taken.folder) as source:
        taken.first, written = await exported(source, taken.asked)
        taken.snapshot_id = written.snapshot_id


async def test_other_weights(other_weights: Path, taken: Exported) -> None:
    async with keeper(other_weights, taken.folder) as target:
        await refused(target, taken.rest, SnapshotSourceMismatch, "weights")


async def test_a_worker_without_a_folder(model: Path, taken: Exported) -> None:
    async with keeper(model, None) as target:
        assert not target.host.worker.describe().snapshots
        await refused(target, taken.rest, SnapshotsOff)
        handle = await target.begin(taken.asked)
        with pytest.raises(SnapshotsOff):
            await target.take(handle)
        whole = await target.end(handle)
    assert whole.tokens[: len(taken.first.tokens)] == taken.first.tokens


async def test_of_two_at_once_one_gets_it(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as source, keeper(model, tmp_path) as one, keeper(model, tmp_path) as other:
        for _ in range(5):
            first, written = await exported(source, asked)
            rest = going_on(asked, written.snapshot_id, first.tokens)
            outcomes = await asyncio.gather(one.begin(rest), other.begin(rest), return_exceptions=True)
            ((winner, handle),) = [
                (who, outcome)
                for who, outcome in zip((one, other), outcomes, strict=True)
                if not isinstance(outcome, BaseException)
            ]
            (loss,) = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            assert isinstance(loss, SnapshotClaimed | SnapshotNotFound)
            second = await winner.end(Handle(handle))
            assert joined(first, second) == await undisturbed(model, asked)
            await one.emptied()
            await other.emptied()
        assert snapshots_in(tmp_path) == []


async def test_requests_of_which_there_is_no_state(model: Path, tmp_path: Path) -> None:
    async with keeper(model, tmp_path) as source:
        with pytest.raises(SnapshotNotReady):
            await source.take(Handle(7))
        handle = await source.begin(asking(output=20))
        with pytest.raises(SnapshotNotReady):
            await source.take(handle, attempt=2)
        await source.end(handle)
        with pytest.raises(SnapshotNotReady):
            await source.take(handle)
        async with RouterEnd(source.host.address) as another, another.attach("r2"):
            pass
    assert snapshots_in(tmp_path) == []
