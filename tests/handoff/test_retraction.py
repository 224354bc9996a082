"""A decode worker that is short of memory: every request ends with the tokens of an undisturbed run, nothing leaks."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.retraction.config import RetractionConfig
from segue.batch.lifecycle import Phase
from segue.batch.request import FinishReason, Request
from segue.batch.sampling import SamplingParams
from segue.engine import Engine
from segue.errors import DeadlineExceeded
from segue.ids import Handle
from segue.tokens import EmittedToken
from segue.wire import Cancel, Finish, GenerateSpec, RetractionFigures
from tests.decode_service.router_end import spec
from tests.handoff.pair import Pair, alone, engine_config, loading, paired
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


async def stepped_until(pair: Pair, seen: Callable[[Request], bool]) -> Request:
    """Lets the decode worker take one step after another, until a request of it is seen to be so; then it stands."""
    pair.decode_gate.close()
    for _ in range(1000):
        await asyncio.to_thread(pair.decode_gate.reached)
        if (found := next(filter(seen, pair.decode_engine.live_requests()), None)) is not None:
            return found
        pair.decode_gate.allow(1)
    raise AssertionError("no request came to be so")


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


@pytest.mark.long
@pytest.mark.parametrize("host_bytes", [0, 200_000, 32 << 20])
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


@pytest.mark.long
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


@pytest.mark.long
@pytest.mark.parametrize("how", ["finish", "deadline"])
async def test_a_request_that_ends_while_it_is_off_the_device_gives_everything_back(hybrid: Path, how: str) -> None:
    asked = [asking(number, 40 + 9 * number, 110) for number in range(6)]
    async with paired(hybrid, retraction=SHORT, decode=SMALL, max_len=256) as pair:
        handles = [await pair.begin(one) for one in asked]
        away = await stepped_until(pair, lambda one: one.phase is Phase.RETRACTED and len(one.output) > 2)
        assert any(pool.held for pool in pair.decode_engine.status().retraction.host)
        number = handles.index(away.handle)
        if how == "finish":
            await pair.stream.send(Finish(away.handle, 1, 2))
            # The worker's own heartbeats go on while its engine stands.
            await pair.stream.until(lambda _: any(one.leaving for one in pair.decode.worker.live))
        else:
            away.deadline = 0.0
        pair.decode_gate.open()
        found = [await pair.end(handle) for handle in handles]
        await pair.emptied()
        seen = await figures(pair)
    assert not any(pool.held for pool in seen.host)
    assert seen.by_memory > seen.resumed, "it never came back"
    ended = found[number]
    right = await alone(hybrid, asked, max_len=256)
    assert ended.tokens == right[number].tokens[: len(ended.tokens)]
    if how == "finish":
        assert (ended.reason, ended.usage) == (FinishReason.STOP, (len(asked[number].prompt), 2))
    else:
        assert isinstance(ended.error, DeadlineExceeded)
        assert ended.usage[1] == len(ended.tokens) > 2
    assert found[:number] + found[number + 1 :] == right[:number] + right[number + 1 :]


@pytest.mark.long
@pytest.mark.parametrize("host_bytes", [0, pytest.param(32 << 20, marks=pytest.mark.long)])
async def test_what_a_request_carries_unread_goes_with_it_wherever_it_is_computed(
    hybrid: Path, host_bytes: int
) -> None:
    # The first one decodes until the second one's prompt is computed, and long after.
    asked = [replace(asking(number, 30, 200 - 170 * number), extension=bytes([number, 0, 255])) for number in range(2)]
    carried = {one.request_id: one.extension for one in asked}
    async with paired(hybrid, retraction=replace(FORCED, host_bytes=host_bytes), max_len=256) as pair:
        handles = [await pair.begin(one) for one in asked]
        await stepped_until(pair, lambda one: one.phase is Phase.DECODING and one.request_id == asked[1].request_id)
        if host_bytes == 0:
            pair.prefill_gate.close()
            pair.decode_gate.open()
            await asyncio.to_thread(pair.prefill_gate.reached)
            for one in pair.prefill_engine.live_requests():
                assert one.output, "it is asked for again"
                assert one.extension == carried[one.request_id]
            pair.decode_gate.close()
            pair.prefill_gate.open()
        back = await stepped_until(pair, lambda one: one.phase is Phase.DECODING and one.retractions > 0)
        assert back.resumed == (host_bytes > 0)
        assert back.extension == carried[back.request_id]
        pair.decode_gate.open()
        found = [await pair.end(handle) for handle in handles]
        await pair.emptied()
    assert found == await alone(hybrid, asked, max_len=256)


@pytest.mark.long
@pytest.mark.parametrize("asks_ahead", [1, pytest.param(4, marks=pytest.mark.slow)])
async def test_recomputes_do_not_wait_behind_those_who_wait_for_their_room(hybrid: Path, asks_ahead: int) -> None:
    """More requests than fit, so that the prefill worker has asked for new ones when the state of others is lost."""
    asked = [asking(number, 40 + 3 * number, 110) for number in range(16)]
    ours: dict[str, object] = {"asks_ahead": asks_ahead}
    async with paired(hybrid, retraction=replace(SHORT, host_bytes=0), decode=SMALL, prefill=ours, max_len=256) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        seen = await figures(pair)
    assert found == await alone(hybrid, asked, max_len=256)
    assert seen.by_memory == seen.recomputed > 0


def outputs(engine: Engine, asked: Sequence[GenerateSpec]) -> dict[str, list[EmittedToken]]:
    """All requests on one engine that computes its prompts itself: the last one comes when the others decode."""
    *first, last = asked
    for number, one in enumerate(first):
        engine.submit(one, Handle(number))
    found: dict[str, list[EmittedToken]] = {}
    names = {Handle(number): one.request_id for number, one in enumerate(asked)}
    late = False
    while not (late and engine.idle):
        record = engine.launch()
        if record is not None:
            news = engine.commit(record)
            for handle, token in zip(news.handles, news.tokens, strict=True):
                found.setdefault(names[handle], []).append(token)
        engine.check()
        if not late and all(one.phase is Phase.DECODING for one in engine.live_requests()):
            engine.submit(last, Handle(len(first)))
            late = True
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("prefix_cache", "state_bytes"), [(True, 860_000), pytest.param(False, 470_000, marks=pytest.mark.long)]
)
def test_a_prompt_that_starts_anew_for_others_of_higher_priority_is_answered_right(
    hybrid: Path, prefix_cache: bool, state_bytes: int
) -> None:
    """The prompt is long in coming: meanwhile the others need more than the headroom of twenty steps."""
    asked = [*(asking(number, 24, 80, priority=1) for number in range(5)), asking(5, 200, 9)]
    config = engine_config(hybrid, "both", max_len=256, chunk_tokens=4, prefix_cache=prefix_cache)
    right = outputs(loading(config)().engine, asked)
    engine = loading(replace(config, state_bytes=state_bytes), None, SHORT)().engine
    assert outputs(engine, asked) == right
    seen = engine.status().retraction
    assert seen.recomputed > 0, "host memory is large: only the prompt is computed again"
    assert seen.resumed_extend_tokens == 0
    assert not any(pool.held for pool in (*engine.status().pools, *seen.host))
