"""However a request ends on its way between two workers, it ends with a word of its own and leaves nothing behind."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kv_transfer.hosting.neighbours import Neighbours
from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.errors import (
    ContextTooLong,
    DeadlineExceeded,
    DigestMismatch,
    LeaseExpired,
    PrefillUnavailable,
)
from segue.ids import WorkerId
from segue.state.regions import Regions
from segue.wire import Cancel, GenerateSpec
from tests.decode_service.router_end import spec
from tests.handoff.pair import Pair, alone, paired

PROMPT = tuple(2 + i * 7 % 90 for i in range(64))
# A prompt of eight chunks.
CHUNKED: dict[str, Any] = {"chunk_tokens": 8, "step_tokens": 8, "max_running": 2}


def asked(name: str = "q", max_tokens: int = 12, deadline_s: float | None = None) -> GenerateSpec:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=max_tokens)
    return replace(spec(name), prompt=PROMPT, sampling=sampling, deadline_s=deadline_s)


async def serves_on(pair: Pair, folder: Path) -> None:
    """Another request is answered as ever, and then both workers are whole."""
    one = asked("after")
    assert await pair.ask([one]) == await alone(folder, [one])
    await pair.emptied()


@pytest.mark.parametrize("transport", ["local", "grpc"])
@pytest.mark.parametrize("chunks", [0, 1, 5, 8])
async def test_a_client_may_leave_at_every_stage_of_the_transfer(hybrid: Path, chunks: int, transport: str) -> None:
    async with paired(hybrid, transports=transport, **CHUNKED) as pair:
        pair.prefill_gate.close()
        pair.decode_gate.close()
        handle = await pair.begin(asked())
        await pair.until(pair.decode.worker, lambda status: status.promised == 1)
        pair.prefill_gate.allow(chunks)
        if chunks == 8:
            # No status is to be had then: the engine thread that would answer is the one before the gate.
            await asyncio.to_thread(pair.decode_gate.reached)
        await pair.stream.send(Cancel(handle, 1))
        pair.prefill_gate.open()
        pair.decode_gate.open()
        assert (await pair.end(handle)).reason is FinishReason.CANCELLED
        await pair.emptied()
        await serves_on(pair, hybrid)


async def test_a_client_may_leave_while_the_prompt_is_queued(hybrid: Path) -> None:
    async with paired(hybrid, prefill={"max_running": 1}, **{**CHUNKED, "max_running": 1}) as pair:
        pair.prefill_gate.close()
        first = await pair.begin(asked("first"))
        queued = await pair.begin(asked("queued"))
        await pair.until(pair.decode.worker, lambda status: (status.promised, status.unpromised) == (1, 1))
        await pair.stream.send(Cancel(queued, 1))
        assert (await pair.end(queued)).reason is FinishReason.CANCELLED
        pair.prefill_gate.open()
        assert (await pair.end(first)).reason is FinishReason.LENGTH
        await serves_on(pair, hybrid)


@pytest.mark.parametrize("granted", [False, True])
async def test_a_deadline_ends_a_request_on_its_way(hybrid: Path, granted: bool) -> None:
    async with paired(hybrid, **CHUNKED) as pair:
        (await pair.ask([asked("warm")]))
        pair.prefill_gate.close()
        pair.decode_gate.close()
        handle = await pair.begin(asked(deadline_s=0.4))
        if granted:
            pair.prefill_gate.allow(2)
            await pair.until(pair.decode.worker, lambda status: status.promised == 1)
        answer = await pair.end(handle)
        assert isinstance(answer.error, DeadlineExceeded)
        pair.prefill_gate.open()
        pair.decode_gate.open()
        await serves_on(pair, hybrid)


async def test_a_full_decode_worker_grants_late_and_loses_nothing(hybrid: Path) -> None:
    asks = [asked(f"q{i}", max_tokens=8) for i in range(5)]
    async with paired(hybrid, prefill={"max_running": 4}, **{**CHUNKED, "max_running": 1}) as pair:
        apart = await pair.ask(asks)
        await pair.emptied()
    assert apart == await alone(hybrid, asks)


async def test_a_prompt_too_long_for_the_decode_worker_is_refused_at_once(hybrid: Path) -> None:
    async with paired(hybrid, max_len=70, prefill={"max_len": 512}) as pair:
        with pytest.raises(ContextTooLong):
            await pair.begin(asked())
        await pair.emptied()


async def test_a_prompt_too_long_for_the_prefill_worker_is_the_client_s_affair(hybrid: Path) -> None:
    async with paired(hybrid, prefill={"max_len": 70}) as pair:
        answer = await pair.end(await pair.begin(asked()))
        assert isinstance(answer.error, ContextTooLong)
        await pair.emptied()


async def test_workers_of_unlike_state_refuse_each_other_with_both_values_named(hybrid: Path) -> None:
    async with paired(hybrid, prefill={"page_tokens": 16}) as pair:
        answer = await pair.end(await pair.begin(asked()))
        assert isinstance(answer.error, PrefillUnavailable)
        assert "page_tokens" in answer.error.message
        await pair.emptied()


async def test_a_prefill_worker_that_is_not_there_is_named(hybrid: Path) -> None:
    async with paired(hybrid) as pair:
        handle = await pair.router.generate(replace(asked(), prefill_address="127.0.0.1:9"))
        answer = await pair.end(handle)
        assert isinstance(answer.error, PrefillUnavailable)
        assert "127.0.0.1:9" in answer.error.message
        await serves_on(pair, hybrid)


class LossyNeighbours(Neighbours):
    """Memory that, while `losing`, is not that of the workers: what is written there is lost."""

    losing = False

    def regions(self, worker_id: WorkerId) -> Regions | None:
        regions = super().regions(worker_id)
        if not self.losing or regions is None:
            return regions
        return Regions([torch.zeros_like(tensor) for tensor in regions.tensors])


async def test_state_that_did_not_arrive_whole_is_never_used(hybrid: Path) -> None:
    neighbours = LossyNeighbours()
    async with paired(hybrid, neighbours=neighbours) as pair:
        neighbours.losing = True
        answer = await pair.end(await pair.begin(asked()))
        assert isinstance(answer.error, DigestMismatch)
        assert answer.tokens == []
        neighbours.losing = False
        await serves_on(pair, hybrid)


async def test_a_promise_without_a_sign_of_life_runs_out(hybrid: Path) -> None:
    async with paired(hybrid, lease_s=0.3, heartbeat_s=5.0, **CHUNKED) as pair:
        pair.prefill_gate.close()
        handle = await pair.begin(asked())
        answer = await pair.end(handle)
        assert isinstance(answer.error, LeaseExpired)
        pair.prefill_gate.open()
        await pair.emptied()
