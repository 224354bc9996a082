"""A resumed request is what it was: its parameters, its worker's model, its counts; and it needs no prefill worker."""

import asyncio
from dataclasses import replace

import pytest

from router.choice import Sent
from router.openai.plan import PlannedChoice, TextOptions
from router.snapshots.running import served_tokens
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.errors import WorkerUnavailable
from segue.wire import GenerateSpec
from tests.router.served import ANSWER, END, answer, served, tokenizer
from tests.router.snapshotting import (
    ADMIN,
    COMPLETIONS,
    KEEPING,
    MOST,
    Asked,
    code,
    first_half,
    resume,
    second_half,
    whole,
)
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

PARAMETERS = {
    "prompt": "two pears",
    "max_tokens": 64,
    "min_tokens": 2,
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.01,
    "seed": 11,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
    "repetition_penalty": 1.1,
    "logit_bias": {"7": -1.5},
    "stop_token_ids": [9],
    "priority": 3,
    "cache_salt": "tenant",
    "logprobs": 1,
}


async def test_a_resumed_request_has_every_parameter_it_had() -> None:
    folder = FakeFolder()
    async with (
        FakeWorker(answer, paused=True, folder=folder, cached_tokens=1) as worker,
        served(worker, config=KEEPING) as router,
    ):
        asked = Asked(COMPLETIONS, PARAMETERS, stream=False)
        expected = await whole(router, worker, asked)
        first = await first_half(router, worker, asked, 4, 1)
        assert first.usage == {
            **(expected.usage or {}),
            "completion_tokens": 4,
            "total_tokens": len(worker.specs[0].prompt) + 4,
        }
        assert first.snapshot_id is not None
        manifest = folder.manifests[first.snapshot_id]
        cached = folder.put(manifest, replace(manifest.request, extension="0a0b", cached_tokens=2))
        second = await second_half(router, worker, cached, stream=False)
        assert (second.usage or {})["prompt_tokens_details"] == {"cached_tokens": 2}
        before, after = worker.specs[-2:]
        wanted = replace(
            before,
            request_id=after.request_id,
            emitted=tuple(tokenizer().encode(ANSWER)[:5]),
            deadline_s=after.deadline_s,
            extension=b"\x0a\x0b",
            snapshot_id=cached,
            claimant=after.claimant,
        )
        assert before.claimant != after.claimant
        assert replace(after, prompt=tuple(after.prompt)) == replace(wanted, prompt=tuple(before.prompt))


async def test_a_decode_worker_resumes_without_any_prefill_worker() -> None:
    folder = FakeFolder()
    async with (
        FakeWorker(answer, paused=True, folder=folder) as worker,
        FakeWorker(answer, folder=folder, role="decode", worker_id="d") as decode,
        FakeWorker(answer, role="prefill", worker_id="p") as prefill,
        served(worker, config=KEEPING) as router,
    ):
        first = await first_half(router, worker, Asked(COMPLETIONS, {"prompt": "x", "max_tokens": 64}), 4, 0)
        assert first.snapshot_id is not None
        manifest = folder.manifests[first.snapshot_id]
        for prefills in ([], [prefill]):
            async with served(decode, prefills=prefills, config=KEEPING) as other:
                while prefills and not all(one.ready for one in other.shell.fleet.prefills.workers):
                    await other.shell.fleet.wait_change(1.0)
                got = await resume(other, folder.put(manifest, manifest.request))
                assert got.status_code == 200, got.text
                assert decode.specs[-1].prefill_address == ""


@pytest.mark.parametrize("how", ["dies", "drains"])
async def test_a_resumed_request_goes_on_with_the_weights_that_resumed_it_only(how: str) -> None:
    config = replace(KEEPING, continuation_grace_s=0.2)
    async with (
        FakeWorker(answer, worker_id="a", paused=True, folder=FakeFolder()) as a,
        FakeWorker(answer, worker_id="b", fingerprint="g" * 16) as b,
        served(a, config=config) as router,
    ):
        first = await first_half(router, a, Asked(COMPLETIONS, {"prompt": "x", "max_tokens": 64}), 4, 0)
        assert first.snapshot_id is not None
        router.shell.fleet.set_addresses([a.address, b.address])
        await router.until_ready(2)
        path = f"/v1/snapshots/{first.snapshot_id}/resume"
        resuming = asyncio.create_task(router.http.post(path, json={"stream": True}, headers=ADMIN))
        await a.until(lambda: bool(a.live))
        router.shell.fleet.set_addresses([b.address])
        if how == "dies":
            await a.stop()
        else:
            a.end(next(iter(a.live)), FinishReason.ERROR, WorkerUnavailable("draining"))
        assert code(await resuming) == (503, "worker_unavailable")
        assert not b.specs


@pytest.mark.parametrize(
    ("characters", "reports", "wanted", "served_count"),
    [(1, 0, None, 1), (1, 0, 0, 0), (1, 1, 0, 1), (2, 1, 0, 1), (2, 9, 0, 5), (0, 0, None, 0), (9, 9, None, 6)],
)
def test_a_token_counts_as_served_when_all_of_its_text_and_its_logprob_were_sent(
    characters: int, reports: int, wanted: int | None, served_count: int
) -> None:
    tokens = tokenizer().encode("a🍎b")
    assert len(tokens) == 6, "the apple has four bytes, and each is a token"
    planned = PlannedChoice(index=0, prompt_number=0, prompt=(7,), sampling=SamplingParams(seed=1, logprobs=wanted))
    text = TextOptions(echo=False, stops=None, include_stop=False, skip_special_tokens=True)
    assert served_tokens(tokenizer(), planned, text, tokens, Sent(characters, reports)) == served_count


def test_a_prompt_that_was_sent_too_is_no_output() -> None:
    prompt, output = tokenizer().encode("xyz"), tokenizer().encode("ab")
    planned = PlannedChoice(index=0, prompt_number=0, prompt=tuple(prompt), sampling=SamplingParams(seed=1, logprobs=0))
    text = TextOptions(echo=True, stops=None, include_stop=False, skip_special_tokens=True)
    sent = Sent(len("xyz") + len("ab"), len(prompt) + len(output))
    assert served_tokens(tokenizer(), planned, text, output, sent) == len(output)
    assert served_tokens(tokenizer(), planned, text, output, replace(sent, characters=len("xyz"))) == 0
    assert served_tokens(tokenizer(), planned, text, output, replace(sent, reports=len(prompt))) == 0


@pytest.mark.long
async def test_a_long_output_is_cut_as_exactly_as_a_short_one() -> None:
    tokens = tokenizer().encode("six \N{RED APPLE} " * 200)

    def long(spec: GenerateSpec) -> list[int]:
        return [*tokens, END]

    assert 1500 < len(tokens) < MOST
    async with (
        FakeWorker(long, paused=True, folder=FakeFolder()) as worker,
        served(worker, config=KEEPING) as router,
    ):
        asked = Asked(COMPLETIONS, {"prompt": "x", "max_tokens": len(tokens) + 1, "logprobs": 0, "stop": "six six"})
        expected = await whole(router, worker, asked)
        for cut in (1200, 1203):
            first = await first_half(router, worker, asked, cut, 50)
            assert first.snapshot_id is not None
            second = await second_half(router, worker, first.snapshot_id, stream=True)
            assert first.text + second.text == expected.text
            assert first.reports + second.reports == expected.reports
