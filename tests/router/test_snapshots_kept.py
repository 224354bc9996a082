"""What workers keep is listed, looked at and deleted; what cannot be resumed is refused before a stream begins."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from router.config import RouterConfig
from segue.batch.request import FinishReason
from segue.errors import (
    ConfigError,
    ServingError,
    SnapshotClaimed,
    SnapshotDigestMismatch,
    SnapshotForeign,
    SnapshotLayoutMismatch,
    SnapshotManifestInvalid,
    WorkerUnavailable,
)
from segue.state.snapshot.fields import JsonValue
from segue.state.snapshot.manifest import Manifest, SnapshotKind
from segue.tokens import EmittedToken
from tests.router.served import Served, answer, served, turn
from tests.router.snapshotting import (
    ADMIN,
    CHAT,
    COMPLETIONS,
    KEEPING,
    NAME,
    Asked,
    code,
    first_half,
    resume,
    second_half,
)
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

ASKED = Asked(COMPLETIONS, {"prompt": "x", "max_tokens": 64, "logprobs": 1})


@dataclass(frozen=True, slots=True)
class Kept:
    """A router with one snapshot behind it."""

    worker: FakeWorker
    router: Served
    snapshot_id: str

    @property
    def folder(self) -> FakeFolder:
        return self.worker.snapshots.folder

    @property
    def manifest(self) -> Manifest:
        return self.folder.manifests[self.snapshot_id]


@asynccontextmanager
async def kept(model: str = "fake", asked: Asked = ASKED) -> AsyncIterator[Kept]:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder(), model=model) as worker,
        served(worker, config=KEEPING) as router,
    ):
        half = await first_half(router, worker, asked, 4, 1)
        assert half.snapshot_id is not None
        yield Kept(worker, router, half.snapshot_id)


async def test_a_snapshot_is_listed_and_looked_at_and_verified() -> None:
    async with kept() as it:
        listed = (await it.router.http.get("/v1/snapshots", headers=ADMIN)).json()
        (entry,) = listed["snapshots"]
        assert entry == {
            "id": it.snapshot_id,
            "request_id": NAME,
            "kind": "export",
            "created": it.manifest.created_s,
            "bytes": it.manifest.payloads[0].bytes,
            "computed": it.manifest.state.computed,
            "tp_size": 1,
            "claimed_by": None,
            "refused": None,
            "where": [it.worker.address],
        }
        assert listed["unanswered"] == []
        for query, verified in (("", False), ("?verify=false", False), ("?verify=true", True)):
            got = (await it.router.http.get(f"/v1/snapshots/{it.snapshot_id}{query}", headers=ADMIN)).json()
            assert (got["id"], got["where"], got["verified"]) == (it.snapshot_id, [it.worker.address], verified)
            assert got["manifest"]["request"]["request_id"] == NAME
            assert len(got["manifest"]["request"]["output"]) == 5
        odd = await it.router.http.get(f"/v1/snapshots/{it.snapshot_id}?verify=1", headers=ADMIN)
        assert code(odd) == (400, "invalid_request")
        it.worker.snapshots.refusals = [SnapshotDigestMismatch("rank-0.safetensors: 'full' differs")]
        bad = await it.router.http.get(f"/v1/snapshots/{it.snapshot_id}?verify=true", headers=ADMIN)
        assert code(bad) == (422, "snapshot_digest_mismatch")


async def test_one_that_its_worker_cannot_read_is_listed_with_the_reason() -> None:
    async with kept() as it:
        it.folder.unreadable["f" * 32] = "snapshot_failed"
        listed = (await it.router.http.get("/v1/snapshots", headers=ADMIN)).json()["snapshots"]
        refused = {
            entry["id"]: (entry["refused"], entry["kind"], entry["created"], entry["request_id"]) for entry in listed
        }
        assert refused["f" * 32] == ("snapshot_failed", None, None, None)
        assert refused[it.snapshot_id][:2] == (None, "export")


async def test_a_snapshot_is_deleted_once() -> None:
    async with kept() as it:
        path = f"/v1/snapshots/{it.snapshot_id}"
        it.folder.claimed[it.snapshot_id] = "somebody"
        assert code(await it.router.http.delete(path, headers=ADMIN)) == (409, "snapshot_claimed")
        it.folder.claimed.clear()
        got = await it.router.http.delete(path, headers=ADMIN)
        assert got.json() == {"id": it.snapshot_id, "deleted": True}
        for again in (
            await it.router.http.delete(path, headers=ADMIN),
            await it.router.http.get(path, headers=ADMIN),
            await resume(it.router, it.snapshot_id),
        ):
            assert code(again) == (404, "snapshot_not_found")


@pytest.mark.parametrize("name", ["%2e%2e", "..%2f..%2fetc", "a%00b", "x" * 65, "%20", "ä", "walk", "F" * 32, "0" * 31])
async def test_a_name_that_is_none_is_not_found_and_no_worker_hears_of_it(name: str) -> None:
    async with kept() as it:
        for got in (
            await it.router.http.get(f"/v1/snapshots/{name}", headers=ADMIN),
            await it.router.http.delete(f"/v1/snapshots/{name}", headers=ADMIN),
            await it.router.http.post(f"/v1/snapshots/{name}/resume", headers=ADMIN),
        ):
            assert got.status_code in (404, 405)
        assert not it.worker.snapshots.looked_for


async def test_folders_of_several_workers_are_one() -> None:
    shared, own = FakeFolder(), FakeFolder()
    async with (
        kept() as it,
        FakeWorker(answer, worker_id="a", folder=shared) as a,
        FakeWorker(answer, worker_id="b", folder=shared) as b,
        FakeWorker(answer, worker_id="c", folder=own) as c,
        FakeWorker(answer, worker_id="d") as d,
        served(a, b, c, d, config=KEEPING) as router,
    ):
        in_shared = shared.put(it.manifest, it.manifest.request)
        in_own = own.put(it.manifest, it.manifest.request)
        listed = (await router.http.get("/v1/snapshots", headers=ADMIN)).json()["snapshots"]
        where = {entry["id"]: sorted(entry["where"]) for entry in listed}
        assert where == {in_shared: sorted([a.address, b.address]), in_own: [c.address]}
        found = (await router.http.get(f"/v1/snapshots/{in_own}", headers=ADMIN)).json()
        assert found["where"] == [c.address]
        got = await resume(router, in_own)
        assert got.status_code == 200
        assert (len(a.specs), len(b.specs), len(c.specs), len(d.specs)) == (0, 0, 1, 0)
        assert (await router.http.delete(f"/v1/snapshots/{in_shared}", headers=ADMIN)).status_code == 200
        assert not shared.manifests


async def test_a_worker_that_does_not_answer_hides_no_other() -> None:
    async with (
        kept() as it,
        FakeWorker(answer, worker_id="lost", folder=FakeFolder()) as lost,
        served(it.worker, lost, config=KEEPING) as router,
    ):
        lost.snapshots.failing = WorkerUnavailable("going down")
        listed = (await router.http.get("/v1/snapshots", headers=ADMIN)).json()
        assert [entry["id"] for entry in listed["snapshots"]] == [it.snapshot_id]
        (silent,) = listed["unanswered"]
        assert (silent["address"], silent["error"]["code"]) == (lost.address, "worker_unavailable")
        found = await router.http.get(f"/v1/snapshots/{it.snapshot_id}", headers=ADMIN)
        assert found.status_code == 200
        # Whether that worker has it nobody knows.
        missing = await router.http.get(f"/v1/snapshots/{'0' * 32}", headers=ADMIN)
        assert code(missing) == (503, "worker_unavailable")
        assert code(await router.http.delete(f"/v1/snapshots/{it.snapshot_id}", headers=ADMIN))[0] == 503
    async with FakeWorker(answer, folder=FakeFolder()) as only, served(only, config=KEEPING) as router:
        only.snapshots.failing = WorkerUnavailable("going down")
        assert code(await router.http.get("/v1/snapshots", headers=ADMIN)) == (503, "worker_unavailable")


async def test_a_worker_that_cannot_be_asked_now_may_have_it() -> None:
    async with (
        kept() as it,
        FakeWorker(answer, worker_id="lost", folder=FakeFolder()) as lost,
        served(it.worker, lost, config=KEEPING) as router,
    ):
        await lost.stop()
        async with asyncio.timeout(20):
            while len(router.shell.fleet.ready) == 2:
                await turn()
        listed = (await router.http.get("/v1/snapshots", headers=ADMIN)).json()
        assert [entry["id"] for entry in listed["snapshots"]] == [it.snapshot_id]
        assert [(one["address"], one["error"]["code"]) for one in listed["unanswered"]] == [
            (lost.address, "worker_unavailable")
        ]
        assert (await router.http.get(f"/v1/snapshots/{it.snapshot_id}", headers=ADMIN)).status_code == 200
        for path in (f"/v1/snapshots/{'0' * 32}", f"/v1/snapshots/{it.snapshot_id}"):
            got = await router.http.delete(path, headers=ADMIN)
            assert code(got) == (503, "worker_unavailable")
            assert lost.address in got.json()["error"]["message"]
        assert not it.folder.manifests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "error",
    [
        SnapshotClaimed("somebody is at it"),
        SnapshotLayoutMismatch("other heads"),
        SnapshotForeign("another key"),
        SnapshotDigestMismatch("a bit"),
        SnapshotManifestInvalid("no"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_worker_refuses_to_resume_is_a_status_and_leaves_the_snapshot(
    error: ServingError, stream: bool
) -> None:
    async with kept() as it:
        it.worker.refusals = [error]
        got = await resume(it.router, it.snapshot_id, stream=stream)
        assert code(got) == (error.kind.http, error.kind.code)
        assert it.snapshot_id in it.folder.manifests
        assert (await second_half(it.router, it.worker, it.snapshot_id, stream=stream)).reason == "stop"
        assert code(await resume(it.router, it.snapshot_id, stream=stream)) == (404, "snapshot_not_found")


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_worker_refuses_after_it_accepted_is_a_status_still(stream: bool) -> None:
    async with kept() as it:
        resuming = asyncio.create_task(resume(it.router, it.snapshot_id, stream=stream))
        await it.worker.until(lambda: bool(it.worker.live))
        it.worker.end(next(iter(it.worker.live)), FinishReason.ERROR, SnapshotDigestMismatch("a bit"))
        got = await resuming
        assert code(got) == (422, "snapshot_digest_mismatch")


async def test_a_worker_that_is_about_to_leave_is_not_the_only_one_tried() -> None:
    folder = FakeFolder()
    async with (
        kept() as it,
        FakeWorker(answer, worker_id="a", folder=folder) as a,
        FakeWorker(answer, worker_id="b", folder=folder) as b,
        served(a, b, config=KEEPING) as router,
    ):
        for refusing in (a, b):
            snapshot_id = folder.put(it.manifest, it.manifest.request)
            refusing.refusals = [WorkerUnavailable("draining")]
            assert (await resume(router, snapshot_id)).status_code == 200
            refusing.refusals = []
        assert all(spec.snapshot_id for spec in (*a.specs, *b.specs))


ASKED_CHAT = Asked(
    CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 64, "logprobs": True, "top_logprobs": 1}
)


@pytest.mark.parametrize(("asked", "unknown"), [(ASKED, (None, None)), (ASKED_CHAT, (None, []))], ids=["text", "chat"])
async def test_a_logprob_that_the_snapshot_does_not_know_is_told_as_null(
    asked: Asked, unknown: tuple[object, object]
) -> None:
    async with kept(asked=asked) as it:
        manifest, request = it.manifest, it.manifest.request
        bare = [EmittedToken(token.token_id, None) for token in request.output]
        rest = await second_half(it.router, it.worker, it.snapshot_id, stream=True)
        had = it.folder.put(manifest, replace(request, output=(*bare[:4], *request.output[4:])))
        assert await second_half(it.router, it.worker, had, stream=True) == rest, "its client has those"
        told = await second_half(
            it.router, it.worker, it.folder.put(manifest, replace(request, output=tuple(bare))), stream=False
        )
        assert (told.text, told.reports[1:]) == (rest.text, rest.reports[1:])
        first: Any = told.reports[0]
        assert (first[1:3] if isinstance(first, tuple) else (first["logprob"], first["top_logprobs"])) == unknown


BROKEN: list[tuple[str, dict[str, object]]] = [
    ("prompt", {"prompt": (5000,)}),
    ("output", {"output": (EmittedToken(5000, -0.5, ()),)}),
    ("ended", {"output": (EmittedToken(7, -0.5, ()),) * 64}),
    ("sampling", {"sampling": {}}),
    ("about", {"about": {}}),
]


@pytest.mark.parametrize(("what", "changes"), BROKEN, ids=[what for what, _ in BROKEN])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_manifest_that_no_request_has_written_is_refused_before_any_worker_is_asked(
    what: str, changes: dict[str, object], stream: bool
) -> None:
    async with kept() as it:
        request = replace(it.manifest.request, served=0, cached_tokens=0, **changes)  # type: ignore[arg-type]
        tokens = len(request.prompt) + len(request.output)
        state = replace(it.manifest.state, computed=tokens - 1, components={})
        broken = it.folder.put(replace(it.manifest, state=state), request)
        asked = len(it.worker.specs)
        got = await resume(it.router, broken, stream=stream)
        assert code(got) == (422, "snapshot_manifest_invalid"), got.text
        assert len(it.worker.specs) == asked


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "chats"),
        ("id", 1),
        ("created", "now"),
        ("include_usage", 1),
        ("stop", [""]),
        ("stop", ["a"] * 17),
        ("stop", [1]),
        ("echo", None),
        ("sent_characters", 10_000),
        ("sent_characters", -1),
        ("sent_reports", 10_000),
        ("colour", "red"),
    ],
)
async def test_what_this_router_wrote_beside_it_is_read_strictly(name: str, value: JsonValue) -> None:
    async with kept() as it:
        request = it.manifest.request
        broken = it.folder.put(it.manifest, replace(request, about={**request.about, name: value}))
        got = await resume(it.router, broken)
        assert code(got) == (422, "snapshot_manifest_invalid")
        without = it.folder.put(
            it.manifest, replace(request, about={key: one for key, one in request.about.items() if key != name})
        )
        if name in request.about:
            assert code(await resume(it.router, without)) == (422, "snapshot_manifest_invalid")


@pytest.mark.parametrize("kind", ["periodic", "parked"])
async def test_one_that_does_not_say_what_its_client_has_is_refused_by_its_kind(kind: SnapshotKind) -> None:
    async with kept() as it:
        other = it.folder.put(it.manifest, replace(it.manifest.request, kind=kind, about={}, served=0))
        got = await resume(it.router, other)
        assert code(got) == (409, "snapshot_source_mismatch")
        assert kind in got.json()["error"]["message"]
        assert other in it.folder.manifests


async def test_a_snapshot_of_another_model_is_refused_by_both_names() -> None:
    folder = FakeFolder()
    async with (
        kept("other") as it,
        FakeWorker(answer, folder=folder) as worker,
        served(worker, config=KEEPING) as router,
    ):
        foreign = folder.put(it.manifest, it.manifest.request)
        got = await resume(router, foreign)
        assert code(got) == (409, "snapshot_source_mismatch")
        assert "'other'" in got.json()["error"]["message"]
        assert "fake" in got.json()["error"]["message"]


async def test_a_router_that_stops_resumes_nothing() -> None:
    async with kept() as it:
        it.router.server.stop()
        got = await resume(it.router, it.snapshot_id)
        assert code(got) == (503, "worker_unavailable")


def test_the_admin_key_is_not_that_of_clients() -> None:
    with pytest.raises(ConfigError, match="admin_key"):
        RouterConfig(api_key="a", admin_key="a")
