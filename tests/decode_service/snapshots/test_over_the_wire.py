"""A worker's snapshots as a router takes and uses them: over gRPC, from real engines, while these go on computing."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.wire import GenerateSpec, SnapshotTaken
from tests.decode_service.router_end import spec
from tests.decode_service.snapshots.keepers import Keeper, going_on, keeper, snapshots_in, stalled
from tests.handoff.pair import Answer, alone
from tests.support.checkpoints import VOCAB

pytestmark = pytest.mark.long

PROMPT = 37
SEED = 2**63 - 5
OUTPUT = 300


def asking(output: int = OUTPUT, temperature: float = 0.8, length: int = PROMPT) -> GenerateSpec:
    """Sampled, with penalties: their counts and positions must move too."""
    sampling = SamplingParams(
        seed=SEED, temperature=temperature, top_p=0.9, max_tokens=output, ignore_eos=True, logprobs=0
    )
    sampling = replace(sampling, presence_penalty=0.4, frequency_penalty=0.2)
    prompt = tuple((7 * i) % (VOCAB - 2) + 2 for i in range(1, length + 1))
    return replace(spec("q"), prompt=prompt, sampling=sampling)


def joined(first: Answer, second: Answer) -> tuple[list[int], list[float]]:
    return first.tokens + second.tokens, first.logprobs + second.logprobs


async def undisturbed(model: Path, asked: GenerateSpec, **changes: object) -> tuple[list[int], list[float]]:
    (answer,) = await alone(model, [asked], **changes)
    return answer.tokens, answer.logprobs


async def exported(source: Keeper, asked: GenerateSpec, after: int = 10) -> tuple[Answer, SnapshotTaken]:
    """What was told until a request left, at least so many tokens."""
    handle = await source.begin(asked)
    await source.told(handle, after)
    taken = await source.take(handle)
    first = await source.end(handle)
    ended = source.stream.ended[handle]
    assert (ended.reason, ended.snapshot_id, ended.error) == (FinishReason.MOVED, taken.snapshot_id, None)
    assert taken.computed == len(asked.prompt) + len(first.tokens) - 1
    assert after <= len(first.tokens) < asked.sampling.max_tokens
    await source.emptied()
    return first, taken


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_an_exported_request_goes_on_at_another_worker(model: Path, tmp_path: Path, temperature: float) -> None:
    asked = asking(temperature=temperature)
    async with keeper(model, tmp_path) as source:
        first, taken = await exported(source, asked)
        figures = (await source.status()).snapshots
        assert (figures.exported, figures.copied, figures.failed, figures.bytes) == (1, 0, 0, taken.bytes)
    assert snapshots_in(tmp_path) == [taken.snapshot_id]
    async with keeper(model, tmp_path) as target:
        second = await target.end(await target.begin(going_on(asked, taken.snapshot_id, first.tokens)))
        await target.emptied()
        status = await target.status()
    assert joined(first, second) == await undisturbed(model, asked)
    assert status.prefill_tokens == 0
    assert (status.retraction.restored, status.retraction.recomputed_tokens) == (1, 0)
    assert snapshots_in(tmp_path) == []


async def test_a_copy_has_the_state_of_its_moment_while_its_request_runs_on(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as source:
        handle = await source.begin(asked)
        await source.told(handle, 10)
        with stalled(tmp_path) as over:
            taking = asyncio.create_task(source.take(handle, copy=True))
            # Nothing of it is on the disk before the request has long gone on.
            await source.told(handle, 100)
            over.set()
            taken = await taking
        whole = await source.end(handle)
        assert (await source.status()).snapshots.copied == 1
    assert (whole.tokens, whole.logprobs) == await undisturbed(model, asked)
    copied = taken.computed - PROMPT + 1
    assert 10 <= copied < 100
    async with keeper(model, tmp_path) as target:
        # What its router has beyond the copy is put in again, and never sampled.
        emitted = whole.tokens[: copied + 15]
        second = await target.end(await target.begin(going_on(asked, taken.snapshot_id, emitted)))
        status = await target.status()
    assert second.tokens == whole.tokens[copied + 15 :]
    assert second.logprobs == whole.logprobs[copied + 15 :]
    # The copy's own pending token is the first of them.
    assert status.prefill_tokens == 15 + 1
    assert snapshots_in(tmp_path) == []


async def test_output_of_a_snapshot_that_the_router_lacks_is_told_first(model: Path, tmp_path: Path) -> None:
    asked = asking()
    async with keeper(model, tmp_path) as source:
        first, taken = await exported(source, asked)
    async with keeper(model, tmp_path) as target:
        second = await target.end(await target.begin(going_on(asked, taken.snapshot_id, first.tokens[:3])))
        assert (await target.status()).prefill_tokens == 0
    tokens, logprobs = await undisturbed(model, asked)
    assert (second.tokens, second.logprobs) == (tokens[3:], logprobs[3:])


@pytest.mark.parametrize(
    ("there", "here"),
    [
        pytest.param({"kv_dtype": "fp8"}, {"kv_dtype": "fp8"}, id="keys and values in 8 bits"),
        pytest.param({"page_tokens": 16}, {"page_tokens": 1, "state_bytes": 4 << 20}, id="other pages and pools"),
    ],
)
async def test_state_of_other_forms_goes_on_as_well(
    model: Path, tmp_path: Path, there: dict[str, object], here: dict[str, object]
) -> None:
    asked = asking()
    async with keeper(model, tmp_path, there) as source:
        first, taken = await exported(source, asked)
    async with keeper(model, tmp_path, here) as target:
        second = await target.end(await target.begin(going_on(asked, taken.snapshot_id, first.tokens)))
        assert (await target.status()).prefill_tokens == 0
    kept = {name: value for name, value in there.items() if name == "kv_dtype"}
    assert joined(first, second) == await undisturbed(model, asked, **kept)


@pytest.mark.parametrize(("there", "here"), [(8, 8), (8, 1), (1, 16)])
async def test_a_ring_of_pending_inputs_is_folded_first(model: Path, tmp_path: Path, there: int, here: int) -> None:
    asked = asking(temperature=0.0)
    async with keeper(model, tmp_path, {"replay_length": there, "deterministic": False}) as source:
        first, taken = await exported(source, asked)
    async with keeper(model, tmp_path, {"replay_length": here, "deterministic": False}) as target:
        second = await target.end(await target.begin(going_on(asked, taken.snapshot_id, first.tokens)))
        assert (await target.status()).prefill_tokens == 0
        await target.emptied()
        target.engine.check()
    tokens, logprobs = joined(first, second)
    wanted = await undisturbed(model, asked, deterministic=False)
    assert tokens == wanted[0]
    assert logprobs == pytest.approx(wanted[1], abs=2e-5)


async def test_ranks_write_each_its_part(model: Path, tmp_path: Path) -> None:
    asked = asking(temperature=0.0)
    async with keeper(model, tmp_path, {"tp": 2}) as source:
        first, taken = await exported(source, asked)
    assert sorted(one.name for one in (tmp_path / taken.snapshot_id).glob("rank-*")) == [
        "rank-0.safetensors",
        "rank-1.safetensors",
    ]
    async with keeper(model, tmp_path) as target:
        second = await target.end(await target.begin(going_on(asked, taken.snapshot_id, first.tokens)))
    tokens, logprobs = joined(first, second)
    wanted = await undisturbed(model, asked)
    assert tokens == wanted[0]
    assert logprobs == pytest.approx(wanted[1], abs=1e-4)
