"""What of snapshots takes long is done beside the event loop; a list does not depend on who says something first."""

import threading

import pytest

from router.snapshots.beside import ENTRIES_INLINE_MAX, TOKENS_INLINE_MAX, beside
from segue.errors import SnapshotFailed
from segue.wire import SnapshotSummary
from tests.router.served import answer, served
from tests.router.snapshotting import ADMIN, COMPLETIONS, KEEPING, Asked, first_half, second_half, whole
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker


async def test_long_work_leaves_the_loop_and_short_work_does_not() -> None:
    here = threading.get_ident()
    assert await beside(9, 9, threading.get_ident) == here
    assert await beside(10, 9, threading.get_ident) != here


async def test_what_long_work_raises_is_raised() -> None:
    def fail() -> None:
        raise SnapshotFailed("gone")

    for size in (1, 99):
        with pytest.raises(SnapshotFailed, match="gone"):
            await beside(size, 9, fail)


@pytest.mark.parametrize("echo", [False, True])
async def test_a_long_prompt_with_a_short_output_is_taken_resumed_and_looked_at(echo: bool) -> None:
    asked = Asked(COMPLETIONS, {"prompt": "é🍎 pears " * TOKENS_INLINE_MAX, "max_tokens": 64, "echo": echo})
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder(), max_len=1 << 20) as worker,
        served(worker, config=KEEPING) as router,
    ):
        expected = await whole(router, worker, asked)
        first = await first_half(router, worker, asked, 4, 1)
        assert worker.snapshots.asked[-1].served == 4
        path = f"/v1/snapshots/{first.snapshot_id}"
        manifest = (await router.http.get(path, headers=ADMIN)).json()["manifest"]
        assert len(manifest["request"]["prompt"]) == len(worker.specs[0].prompt) > TOKENS_INLINE_MAX
        assert first.snapshot_id is not None
        second = await second_half(router, worker, first.snapshot_id, stream=True)
        assert first.text + second.text == expected.text


async def test_a_long_list_is_whole_and_whoever_can_read_an_entry_is_believed() -> None:
    ours, theirs = FakeFolder(), FakeFolder()
    count = ENTRIES_INLINE_MAX + 1
    ours.unreadable = {f"{number:032x}": "snapshot_failed" for number in range(count)}
    known = SnapshotSummary(snapshot_id=f"{0:032x}", bytes=5, request_id="q", kind="copy", created_s=7.0)
    theirs.also = [known]
    async with (
        FakeWorker(answer, worker_id="a", folder=ours) as a,
        FakeWorker(answer, worker_id="b", folder=theirs) as b,
        served(a, b, config=KEEPING) as router,
    ):
        listed = (await router.http.get("/v1/snapshots", headers=ADMIN)).json()["snapshots"]
        assert len(listed) == count
        (entry,) = [one for one in listed if one["id"] == known.snapshot_id]
        assert (entry["refused"], entry["kind"], sorted(entry["where"])) == (
            None,
            "copy",
            sorted([a.address, b.address]),
        )
