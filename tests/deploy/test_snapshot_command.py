"""`segue snapshot` takes, shows, resumes and deletes over a router's HTTP interface; its code says what came of it."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.cli import main
from segue.errors import SnapshotFailed
from tests.router.reading import Reading, reading_from
from tests.router.served import ANSWER, Served, answer, served
from tests.router.snapshotting import CHAT, COMPLETIONS, KEEPING, KEY, until_taken
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

NAME = "team/a-request"
MESSAGES = [{"role": "user", "content": "x"}]


@asynccontextmanager
async def streaming(path: str = COMPLETIONS) -> AsyncIterator[tuple[Served, FakeWorker, Reading]]:
    """A request with four tokens."""
    body = {"max_tokens": 64, **({"messages": MESSAGES} if path == CHAT else {"prompt": "x"})}
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
        reading_from(router.http, path, body, {"x-request-id": NAME}) as stream,
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(4)
        await until_taken(router, 4, NAME)
        yield router, worker, stream


async def segue(router: Served, *command: str) -> int:
    """The command's exit code; the server, which is in this process, goes on meanwhile."""
    return await asyncio.to_thread(main, ["snapshot", *command, "--url", router.url])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEGUE_ADMIN_KEY", KEY)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("flags", [[], ["--stream"]])
async def test_a_request_is_exported_looked_at_and_resumed(
    capsys: pytest.CaptureFixture[str], path: str, flags: list[str]
) -> None:
    async with streaming(path) as (router, worker, stream):
        assert await segue(router, "export", NAME) == 0
        said = capsys.readouterr().out
        snapshot_id = said.split()[0]
        assert re.fullmatch(r"[0-9a-f]{32}  export of team/a-request, \d+ positions, 0.0 MiB\n", said)
        await stream.until_over()
        assert await segue(router, "list") == 0
        head, row = capsys.readouterr().out.splitlines()
        assert head.split()[:3] == ["snapshot", "kind", "taken"]
        assert row.split()[:2] == [snapshot_id, "export"]
        assert row.split()[-4:] == [NAME, "-", "-", worker.address]
        worker.snapshots.folder.unreadable["f" * 32] = "snapshot_failed"
        assert await segue(router, "list") == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("f" * 32))
        assert row.split()[1:] == ["-", "-", "0.0", "MiB", "-", "-", "-", "-", "snapshot_failed", worker.address]
        assert await segue(router, "inspect", snapshot_id) == 0
        shown = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
        assert {name.strip() for name in shown} >= {"snapshot", "tokens", "served", "state", "digests"}
        assert await segue(router, "verify", snapshot_id) == 0
        assert capsys.readouterr().out == f"{snapshot_id}: every digest is right\n"
        resuming = asyncio.create_task(segue(router, "resume", snapshot_id, *flags))
        await worker.until(lambda: bool(worker.live))
        worker.step(200)
        assert await resuming == 0
        assert stream.text + capsys.readouterr().out == ANSWER + "\n"
        assert await segue(router, "resume", snapshot_id, *flags) == 1
        assert f"404: there is no snapshot {snapshot_id}" in capsys.readouterr().err


async def test_a_copy_is_taken_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    async with streaming() as (router, worker, stream):
        assert await segue(router, "export", NAME, "--copy") == 0
        snapshot_id, kind = capsys.readouterr().out.split()[:2]
        assert kind == "copy"
        assert await segue(router, "delete", snapshot_id) == 0
        assert capsys.readouterr().out == f"{snapshot_id} is deleted\n"
        assert await segue(router, "delete", snapshot_id) == 1
        worker.step(200)
        await stream.until_over()
        assert stream.text == ANSWER


async def test_refusals_are_told_in_the_servers_words(capsys: pytest.CaptureFixture[str]) -> None:
    async with streaming() as (router, _, _):
        for command in (["export", "another"], ["inspect", "another"], ["verify", "../x"], ["resume", "another"]):
            assert await segue(router, *command) == 1
            assert "segue: error: the server answered 404" in capsys.readouterr().err


async def test_a_worker_that_does_not_say_what_it_has_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        FakeWorker(answer, worker_id="a", folder=FakeFolder()) as one,
        FakeWorker(answer, worker_id="b", folder=FakeFolder()) as other,
        served(one, other, config=KEEPING) as router,
    ):
        other.snapshots.failing = SnapshotFailed("the disk is gone")
        assert await segue(router, "list") == 0
        assert f"{other.address} does not say: the disk is gone" in capsys.readouterr().out


async def test_the_key_comes_from_a_file_before_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, wrong = tmp_path / "good", tmp_path / "wrong"
    good.write_text(KEY + "\n")
    wrong.write_text("another")
    async with FakeWorker(answer, folder=FakeFolder()) as worker, served(worker, config=KEEPING) as router:
        assert await segue(router, "list", "--admin-key-file", str(wrong)) == 1
        assert "401" in capsys.readouterr().err
        monkeypatch.delenv("SEGUE_ADMIN_KEY")
        assert await segue(router, "list", "--admin-key-file", str(good)) == 0
        assert await segue(router, "list") == 2
        assert "SEGUE_ADMIN_KEY" in capsys.readouterr().err
        assert await segue(router, "list", "--admin-key-file", str(tmp_path / "absent")) == 2
        assert "absent" in capsys.readouterr().err


def test_a_router_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "list", "--url", "http://127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1 does not answer" in capsys.readouterr().err
