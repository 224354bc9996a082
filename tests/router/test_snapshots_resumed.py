"""A request that was taken and resumed gives its clients what an undisturbed one gives, to the byte and once."""

from dataclasses import replace

import pytest

from segue.wire import GenerateSpec
from tests.router.reading import reading_from
from tests.router.served import END, served, tokenizer
from tests.router.snapshotting import (
    ADMIN,
    CHAT,
    COMPLETIONS,
    KEEPING,
    Asked,
    first_half,
    resume,
    second_half,
    take,
    until_taken,
    whole,
)
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

SPELLED = "a🍎 é🍎🍎 ab abc 🍎é abd é"
TOKENS = tokenizer().encode(SPELLED)
HELLO = [{"role": "user", "content": "hello"}]


def answer(spec: GenerateSpec) -> list[int]:
    return [*TOKENS, END]


def long(asked: Asked) -> object:
    """What few others differ from: `make check` leaves it to `make test`."""
    return pytest.param(asked, marks=pytest.mark.long)


def completion(stream: bool = True, **more: object) -> Asked:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return Asked(COMPLETIONS, {"prompt": "x", "max_tokens": 64, "seed": 5, **options, **more}, stream)


@pytest.mark.parametrize(
    "asked",
    [
        completion(),
        long(completion(stream=False)),
        long(completion(logprobs=2)),
        completion(stream=False, logprobs=2, stop=["🍎é a"]),
        long(completion(stop=["abd", "🍎🍎🍎"])),
        completion(logprobs=0, stop=["abcd", "ab a!"], min_tokens=3),
        completion(logprobs=1, stop=["c 🍎é"], include_stop_str_in_output=True),
        long(completion(prompt="é🍎 pears", echo=True)),
        completion(prompt="é🍎 pears", echo=True, logprobs=1),
        long(completion(max_tokens=len(TOKENS))),
        Asked(CHAT, {"messages": HELLO, "max_tokens": 64, "logprobs": True, "top_logprobs": 1, "stop": "abd"}),
        Asked(CHAT, {"messages": HELLO, "max_tokens": 64}, stream=False),
    ],
    ids=str,
)
async def test_both_halves_are_the_whole_wherever_the_request_is_taken(asked: Asked) -> None:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
    ):
        expected = await whole(router, worker, asked)
        # Behind a stop string nothing is left to take.
        kept = (expected.usage or {}).get("completion_tokens", len(TOKENS))
        for cut in range(1, min(kept, len(TOKENS) - 2)):
            more = cut % 3
            first = await first_half(router, worker, asked, cut, more)
            assert first.snapshot_id is not None
            second = await second_half(router, worker, first.snapshot_id, stream=asked.stream or cut % 2 == 0)
            assert first.text + second.text == expected.text, f"taken after {cut} tokens"
            assert first.reports + second.reports == expected.reports, f"taken after {cut} tokens"
            assert second.reason == expected.reason
            if expected.usage is not None and second.usage is not None:
                assert second.usage == expected.usage
            if asked.body.get("echo") is None:
                output = len(worker.specs[-1].emitted)
                assert output == cut + more, "what the worker had beyond what the client had is not sampled again"
        await router.until_idle()


async def test_what_a_worker_is_told_was_served_are_whole_tokens_only() -> None:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
    ):
        for cut in range(1, len(TOKENS) - 2):
            first = await first_half(router, worker, completion(stop=["abd"]), cut, 0)
            served_count = worker.snapshots.asked[-1].served
            assert (
                tokenizer().decode(TOKENS[:served_count])
                == first.text[: len(tokenizer().decode(TOKENS[:served_count]))]
            )
            assert "\ufffd" not in tokenizer().decode(TOKENS[:served_count])
            beyond = tokenizer().decode(TOKENS[: served_count + 1])
            assert len(beyond) > len(first.text) or beyond.endswith("\ufffd") or served_count == cut


async def test_a_resumed_request_says_what_the_first_said_of_itself_and_may_be_taken_again() -> None:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
    ):
        asked = completion(logprobs=1)
        expected = await whole(router, worker, asked)
        first = await first_half(router, worker, asked, 4, 1)
        path = f"/v1/snapshots/{first.snapshot_id}/resume"
        headers = {**ADMIN, "x-request-id": "again"}
        async with reading_from(router.http, path, {}, headers) as second:
            await worker.until(lambda: bool(worker.live))
            worker.step(3)
            await until_taken(router, 8, "again")
            taken = await take(router, "again")
            await second.until_over()
        assert taken.status_code == 200
        third = await second_half(router, worker, taken.json()["id"], stream=True)
        assert first.text + second.text + third.text == expected.text
        assert first.reports + second.reports + third.reports == expected.reports
        assert third.usage == expected.usage
        about = worker.specs[0]
        for spec in worker.specs[2:]:
            assert (spec.sampling, list(spec.prompt), spec.priority) == (about.sampling, list(about.prompt), 0)
        heads = {(event["id"], event["created"], event["seed"], event["model"]) for event in second.events}
        assert heads == {("cmpl-the-request", second.events[0]["created"], 5, "fake")}


@pytest.mark.parametrize("tokens", [0, 3])
async def test_when_the_worker_that_resumed_it_dies_another_goes_on_from_its_tokens(tokens: int) -> None:
    async with (
        FakeWorker(answer, worker_id="a", paused=True, folder=FakeFolder()) as a,
        FakeWorker(answer, worker_id="b", paused=True) as b,
        served(a, config=KEEPING) as router,
    ):
        asked = completion()
        expected = await whole(router, a, asked)
        first = await first_half(router, a, asked, 5, 1)
        router.shell.fleet.set_addresses([a.address, b.address])
        await router.until_ready(2)
        async with reading_from(router.http, f"/v1/snapshots/{first.snapshot_id}/resume", {}, ADMIN) as second:
            await a.until(lambda: bool(a.live))
            assert not b.specs, "it goes on where the snapshot is"
            a.step(tokens)
            if tokens:
                await second.until_text(1)
            await a.stop()
            await b.until(lambda: bool(b.live))
            (spec,) = b.specs
            assert (spec.snapshot_id, spec.emitted) == ("", tuple(TOKENS[: 6 + tokens]))
            b.step(200)
            await second.until_over()
        assert first.text + second.text == expected.text
        assert second.usage == expected.usage
        await router.until_left()


async def test_a_copy_leaves_the_request_alone_and_goes_on_from_what_its_client_had() -> None:
    async with (
        FakeWorker(answer, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
        reading_from(router.http, COMPLETIONS, completion().body, {"x-request-id": "copied"}) as stream,
    ):
        await worker.until(lambda: bool(worker.live))
        worker.step(6)
        await until_taken(router, 6, "copied")
        got = (await take(router, "copied", copy=True)).json()
        assert got == {**got, "kind": "copy", "request_id": "copied", "computed": len(worker.specs[0].prompt) + 5}
        before = stream.text
        worker.step(200)
        await stream.until_over()
        assert (stream.text, stream.reason) == (SPELLED, "stop")
        rest = await second_half(router, worker, got["id"], stream=False)
        assert before + rest.text == SPELLED


async def test_the_time_a_request_had_left_is_all_it_has_after_it_was_resumed() -> None:
    folder = FakeFolder()
    async with (
        FakeWorker(answer, paused=True, folder=folder) as worker,
        served(worker, config=KEEPING) as router,
    ):
        first = await first_half(router, worker, completion(), 4, 0)
        assert first.snapshot_id is not None
        manifest = folder.manifests[first.snapshot_id]
        hasty = folder.put(manifest, replace(manifest.request, deadline_left_s=0.05))
        late = folder.put(manifest, replace(manifest.request, deadline_left_s=-1.0))
        endless = folder.put(manifest, replace(manifest.request, deadline_left_s=None))
        assert (await resume(router, late)).status_code == 504
        assert (await resume(router, hasty)).status_code == 504
        await worker.until(lambda: not worker.live)
        assert (await second_half(router, worker, endless, stream=False)).reason == "stop"
        given = worker.specs[-1].deadline_s
        assert given is not None
        assert 0 < given <= KEEPING.request_timeout_s
