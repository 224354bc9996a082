"""Snapshots through `segue serve` as its manual walks through them, and with workers that are killed on the way."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest

from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.names import MARKER, is_id
from tests.cluster.command import segue
from tests.cluster.deployment import Deployment, deployed
from tests.cluster.test_faults import until_readiness

KEY = "0123456789abcdef0123456789abcdef"
ADMIN = {"authorization": f"Bearer {KEY}"}
POINTS = 20
# A process that is killed again and again has not died of itself.
PATIENT = ("serve.quick_death_s=0.001", "snapshot.claim_s=3", "router.placement_wait_s=20")


@dataclass
class Reading:
    """A stream of text, which may end in a snapshot."""

    text: str = ""
    reason: str = ""
    snapshot_id: str = ""
    status: int = 0
    error: str = ""
    first: threading.Event | None = None

    def take(self, answer: httpx.Response, enough: int) -> None:
        self.status = answer.status_code
        if answer.status_code != 200:
            self.error = orjson.loads(answer.read())["error"]["code"]
            return
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            said = orjson.loads(line[6:])
            assert "error" not in said, said
            for choice in said["choices"]:
                self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
                self.reason = choice["finish_reason"] or self.reason
                self.snapshot_id = choice.get("snapshot_id") or self.snapshot_id
            if self.first is not None and len(self.text) >= enough:
                self.first.set()


def body(max_tokens: int, words: int = 1) -> dict[str, object]:
    prompt = "Ann has 3 apples and 4 pears. " * words + "How many fruits has she?"
    return {
        "model": "segue-zoo",
        "prompt": prompt,
        "stream": True,
        "ignore_eos": True,
        "max_tokens": max_tokens,
        "seed": 7,
        "temperature": 0.8,
    }


@contextmanager
def http(deployment: Deployment) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=deployment.url, timeout=120) as client:
        yield client


def ask(client: httpx.Client, asked: dict[str, object], name: str, read: Reading, enough: int = 40) -> Reading:
    with client.stream("POST", "/v1/completions", json=asked, headers={"x-request-id": name}) as answer:
        read.take(answer, enough)
    return read


def begun(read: Reading) -> None:
    """Waits until enough of it has come."""
    assert read.first is not None
    assert read.first.wait(60), read


def resume(client: httpx.Client, snapshot_id: str) -> Reading:
    read, path = Reading(), f"/v1/snapshots/{snapshot_id}/resume"
    with client.stream("POST", path, json={"stream": True}, headers=ADMIN) as answer:
        read.take(answer, 0)
    return read


def listed(client: httpx.Client) -> list[str]:
    answer = client.get("/v1/snapshots", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    return [one["id"] for one in answer.json()["snapshots"]]


def snapshots_in(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if is_id(entry.name)]


def until_marked(folder: Path) -> None:
    """Returns within a moment after a snapshot's commit."""
    limit = time.monotonic() + 60
    while not any(folder.glob(f"*/{MARKER}")):
        assert time.monotonic() < limit


def settings(folder: Path, *more: str) -> tuple[str, ...]:
    return (f"snapshot.folder={folder}", f"router.admin_key={KEY}", *more)


def test_the_walk_of_the_manual(tmp_path: Path) -> None:
    folder, key = tmp_path / "snapshots", tmp_path / "admin.key"
    folder.mkdir(mode=0o700)
    key.write_text(KEY + "\n")
    asked = body(900)

    def said(deployment: Deployment, *command: str, code: int = 0) -> str:
        ended = segue("snapshot", *command, "--url", deployment.url, "--admin-key-file", str(key))
        assert ended.returncode == code, ended.stderr
        return ended.stdout if code == 0 else ended.stderr

    with deployed(*settings(folder)) as deployment, http(deployment) as client, ThreadPoolExecutor(1) as beside:
        until_readiness(deployment, 200)
        undisturbed = ask(client, asked, "whole", Reading())
        first = Reading(first=threading.Event())
        asking = beside.submit(ask, client, asked, "walk", first)
        begun(first)
        snapshot_id = said(deployment, "export", "walk").split()[0]
        asking.result(30)
        assert (first.reason, first.snapshot_id) == ("snapshot", snapshot_id)
        assert snapshot_id in said(deployment, "list")
        assert "walk" in said(deployment, "inspect", snapshot_id)
        assert "every digest is right" in said(deployment, "verify", snapshot_id)
        assert "walk" in said(deployment, "export", "walk", code=1)
        deployment.emptied()
    assert snapshots_in(folder) == [snapshot_id]
    with deployed(*settings(folder)) as deployment:
        until_readiness(deployment, 200)
        rest = said(deployment, "resume", snapshot_id, "--stream")
        assert first.text + rest.removesuffix("\n") == undisturbed.text
        assert "snapshot" in said(deployment, "resume", snapshot_id, code=1)
        deployment.emptied()
    assert snapshots_in(folder) == []


def test_a_killed_worker_costs_no_more_than_what_came_after_the_last_copy(tmp_path: Path) -> None:
    asked = body(600)
    every = settings(tmp_path, "prefill.replicas=1", "decode.replicas=2", "snapshot.every_tokens=25")
    with deployed(*every) as deployment, http(deployment) as client, ThreadPoolExecutor(6) as beside:
        until_readiness(deployment, 200)
        undisturbed = ask(client, asked, "whole", Reading())
        reads = [Reading(first=threading.Event()) for _ in range(6)]
        asking = [beside.submit(ask, client, asked, f"stream-{n}", read, 200) for n, read in enumerate(reads)]
        for read in reads:
            begun(read)
        prompts = deployment.status("prefill").prefill_tokens
        starts = deployment.kill("decode")
        for each in asking:
            each.result(100)
        assert [read.text for read in reads] == [undisturbed.text] * 6
        deployment.restarted("decode", starts)
        deployment.emptied()
        status = deployment.every_status("decode")
        assert sum(one.retraction.restored for one in status) > 0
        assert deployment.status("prefill").prefill_tokens == prompts
        # Nothing was computed again but what came after a copy: none of these prompts, and no whole output.
        extended = sum(one.prefill_tokens for one in status)
        assert extended <= 2 * 25 * sum(one.retraction.restored for one in status)
    assert snapshots_in(tmp_path) == []


@dataclass
class Kept:
    """A deployment that keeps snapshots, and the answer that every request here gets."""

    deployment: Deployment
    client: httpx.Client
    folder: Path
    asked: dict[str, object]
    answer: str


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder, asked = tmp_path_factory.mktemp("snapshots"), body(300, words=60)
    with deployed(*settings(folder, *PATIENT)) as deployment, http(deployment) as client:
        until_readiness(deployment, 200)
        yield Kept(deployment, client, folder, asked, ask(client, asked, "whole", Reading()).text)


def test_a_worker_that_is_killed_between_the_marker_and_its_word(kept: Kept) -> None:
    """The snapshot owns the request: nobody was told of it, so its stream goes on from there, and nothing is extended.

    Where the word was faster, the client was sent to the snapshot.
    """
    deployment, client, between, tries = kept.deployment, kept.client, False, 0
    while not between and tries < 5:
        tries += 1
        first, name = Reading(first=threading.Event()), f"marked-{tries}"
        with ThreadPoolExecutor(2) as beside:
            asking = beside.submit(ask, client, kept.asked, name, first)
            begun(first)
            taking = beside.submit(client.post, f"/v1/requests/{name}/snapshot", json={"copy": False}, headers=ADMIN)
            until_marked(kept.folder)
            starts = deployment.kill("decode")
            asking.result(100)
            taken = taking.result(100)
        deployment.restarted("decode", starts)
        until_readiness(deployment, 200)
        if first.reason == "snapshot":
            assert first.text + resume(client, first.snapshot_id).text == kept.answer
        else:
            between = True
            assert (first.reason, first.text, taken.status_code) == ("length", kept.answer, 503)
            status = deployment.status("decode")
            assert (status.retraction.restored, status.prefill_tokens) == (1, 0)
        assert listed(client) == []
        deployment.emptied()
        assert snapshots_in(kept.folder) == []
    assert between, "no kill was fast enough"


@pytest.mark.slow
@pytest.mark.parametrize("point", range(POINTS))
def test_a_worker_that_is_killed_while_it_exports(kept: Kept, point: int) -> None:
    """Before the marker there is no snapshot, and the stream goes on; after it there is one, and that goes on, once."""
    deployment, client, first = kept.deployment, kept.client, Reading(first=threading.Event())
    name = f"export-{point}"
    with ThreadPoolExecutor(2) as beside:
        asking = beside.submit(ask, client, kept.asked, name, first)
        begun(first)
        taking = beside.submit(client.post, f"/v1/requests/{name}/snapshot", json={"copy": False}, headers=ADMIN)
        # Where it is hit is a matter of chance: of these moments some lie before the marker, some behind it.
        threading.Event().wait(0.008 * point)
        starts = deployment.kill("decode")
        asking.result(100)
        taken = taking.result(100)
    deployment.restarted("decode", starts)
    until_readiness(deployment, 200)
    print(point, first.reason, taken.status_code)
    if first.reason == "snapshot":
        assert listed(client) == [first.snapshot_id]
        second = resume(client, first.snapshot_id)
        assert first.text + second.text == kept.answer
        assert resume(client, first.snapshot_id).error == "snapshot_not_found"
    else:
        assert (first.reason, first.text) == ("length", kept.answer)
        assert taken.status_code != 200
    assert listed(client) == []
    deployment.emptied()
    SnapshotFolder.open(SnapshotConfig(folder=str(kept.folder))).sweep()
    assert snapshots_in(kept.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("point", range(POINTS))
def test_a_worker_that_is_killed_while_it_resumes(kept: Kept, point: int) -> None:
    """Whoever asked gets all of the rest, or an error before the first byte, and then the snapshot is still whole."""
    deployment, client, first = kept.deployment, kept.client, Reading(first=threading.Event())
    name = f"resume-{point}"
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(ask, client, kept.asked, name, first)
        begun(first)
        taken = client.post(f"/v1/requests/{name}/snapshot", json={"copy": False}, headers=ADMIN)
        assert taken.status_code == 200, taken.text
        asking.result(30)
        resuming = beside.submit(resume, client, first.snapshot_id)
        threading.Event().wait(0.008 * point)
        starts = deployment.kill("decode")
        second = resuming.result(100)
    deployment.restarted("decode", starts)
    until_readiness(deployment, 200)
    print(point, second.status, second.error)
    if second.status != 200:
        assert listed(client) == [first.snapshot_id]
        second = resume(client, first.snapshot_id)
    assert second.status == 200, second.error
    assert first.text + second.text == kept.answer
    assert resume(client, first.snapshot_id).error == "snapshot_not_found"
    assert listed(client) == []
    deployment.emptied()
    SnapshotFolder.open(SnapshotConfig(folder=str(kept.folder))).sweep()
    assert snapshots_in(kept.folder) == []
