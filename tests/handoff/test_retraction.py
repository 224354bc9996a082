"""A decode worker that is short of memory: every request ends with the tokens of an undisturbed run, nothing leaks."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.retraction.config import RetractionConfig
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.wire import Cancel, GenerateSpec, RetractionFigures
from tests.decode_service.router_end import spec
from tests.handoff.pair import Pair, alone, paired
from tests.support.checkpoints import VOCAB

SMALL: dict[str, object] = {"state_bytes": 860_000}
"""Room on the decode worker for 60 pages, where the eight that may run come to need 200."""
FORCED = RetractionConfig(host_bytes=32 << 20, verify=True, test_interval=3)
SHORT = RetractionConfig(host_bytes=32 << 20, verify=True, ratio_start=0.0, ratio_floor=0.0)


def asking(number: int, length: int, output: int, *, priority: int = 0) -> GenerateSpec:
    """Every third is sampled, with penalties: their counts and positions must survive too."""
    sampling = SamplingParams(seed=number, temperature=0.0, max_tokens=output, logprobs=0, ignore_eos=True)
    if number % 3 == 0:
        sampling = replace(sampling, temperature=0.8, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.3)
    prompt = tuple(2 + (31 * number + 7 * i + i * i) % (VOCAB - 2) for i in range(length))
    return replace(spec(f"q{number}"), prompt=prompt, sampling=sampling, priority=priority)


async def figures(pair: Pair) -> RetractionFigures:
    return (await pair.decode.worker.status()).retraction


@pytest.mark.parametrize("page", [pytest.param(1, marks=pytest.mark.long), 8])
async def test_forced_retraction_changes_no_token_and_no_logprob(hybrid: Path, page: int) -> None:
    asked = [asking(number, 20 + 13 * number, 40 + number) for number in range(6)]
    async with paired(hybrid, retraction=FORCED, page_tokens=page, max_len=256) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        seen = await figures(pair)
    assert found == await alone(hybrid, asked, page_tokens=page, max_len=256)
    assert seen.by_test == seen.resumed > 10
    assert (seen.recomputed, seen.mismatched, seen.resumed_extend_tokens, seen.recomputed_tokens) == (0, 0, 0, 0)
    assert not any(pool.held for pool in seen.host)


@pytest.mark.parametrize(
    "host_bytes", [200_000, *(pytest.param(size, marks=pytest.mark.long) for size in (0, 32 << 20))]
)
async def test_a_decode_worker_short_of_memory_ends_every_request_right(hybrid: Path, host_bytes: int) -> None:
    """With no host memory, too little of it, and enough: by recompute through the prefill worker, mixed, by resume."""
    asked = [asking(number, 40 + 9 * number, 110) for number in range(8)]
    async with paired(hybrid, retraction=replace(SHORT, host_bytes=host_bytes), decode=SMALL, max_len=256) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        seen = await figures(pair)
        handoffs = (await pair.decode.worker.status()).transfers.count
    assert found == await alone(hybrid, asked, max_len=256)
    assert seen.by_memory == seen.resumed + seen.recomputed > 0
    assert seen.resumed_extend_tokens == 0
    assert handoffs == len(asked) + seen.recomputed, "what is recomputed comes from the prefill worker"
    assert (seen.recomputed_tokens > 0) == (seen.recomputed > 0)
    if host_bytes == 0:
        assert seen.resumed == 0
    if host_bytes == SHORT.host_bytes:
        assert seen.recomputed == 0


async def test_a_request_whose_prefill_worker_is_gone_is_recomputed_where_it_ran(hybrid: Path) -> None:
    asked = [asking(number, 40 + 9 * number, 110) for number in range(5)]
    async with paired(hybrid, retraction=replace(SHORT, host_bytes=0), decode=SMALL, max_len=256) as pair:
        handles = [await pair.begin(one) for one in asked]
        await pair.stream.until(lambda seen: all(handle in seen.tokens for handle in handles))
        handoffs = (await pair.decode.worker.status()).transfers.count
        pair.prefill_gate.close()
        await pair.prefill.worker.drain(0.1)
        await pair.prefill.stop()
        found = [await pair.end(handle) for handle in handles]
        seen = await figures(pair)
        assert (await pair.decode.worker.status()).transfers.count == handoffs
    assert found == await alone(hybrid, asked, max_len=256)
    assert seen.recomputed > 0


@pytest.mark.long
async def test_clients_that_leave_while_their_requests_are_off_the_device_leak_nothing(hybrid: Path) -> None:
    asked = [asking(number, 40 + 9 * number, 110) for number in range(8)]
    async with paired(hybrid, retraction=SHORT, decode=SMALL, max_len=256) as pair:
        handles = [await pair.begin(one) for one in asked]
        await pair.until(pair.decode.worker, lambda status: status.retraction.waiting > 0)
        for handle in handles[::2]:
            await pair.stream.send(Cancel(handle, 1))
        found = [await pair.end(handle) for handle in handles]
        await pair.emptied()
        seen = await figures(pair)
    right = await alone(hybrid, asked, max_len=256)
    for number, (one, other) in enumerate(zip(found, right, strict=True)):
        if number % 2 == 0:
            assert one.reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
            assert one.tokens == other.tokens[: len(one.tokens)]
        else:
            assert one == other
    assert not any(pool.held for pool in seen.host)


@pytest.mark.long
async def test_requests_of_mixed_priorities_all_end_right(hybrid: Path) -> None:
    asked = [asking(number, 40, 110, priority=number % 2) for number in range(8)]
    async with paired(hybrid, retraction=SHORT, decode=SMALL, max_len=256) as pair:
        handles = await asyncio.gather(*(pair.begin(one) for one in asked))
        found = [await pair.end(handle) for handle in handles]
        await pair.emptied()
        assert (await figures(pair)).by_memory > 0
    assert found == await alone(hybrid, asked, max_len=256)
