"""Keys and values in 8 bits travel with their scales, to another worker, to host memory and back, or not at all."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from segue.errors import PrefillUnavailable
from segue.ids import RequestId
from tests.handoff.pair import alone, paired
from tests.handoff.test_equality import LENGTHS, requests
from tests.handoff.test_retraction import FORCED, asking


@pytest.mark.parametrize(
    "transport", ["local", *(pytest.param(name, marks=pytest.mark.long) for name in ("nixl", "grpc"))]
)
async def test_outputs_are_those_of_one_worker(hybrid: Path, transport: str) -> None:
    asked = requests(1, LENGTHS[::2])
    async with paired(hybrid, transports=transport, kv_dtype="fp8") as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
        status = await pair.decode.worker.status()
        assert status.transfers.count > len(asked) // 2
        assert status.prefill_tokens == 0
    assert apart == await alone(hybrid, asked, kv_dtype="fp8")
    assert apart != await alone(hybrid, asked)


@pytest.mark.long
@pytest.mark.parametrize("family", ["sliding", "dense"])
async def test_models_without_some_component_hand_over_what_they_have(
    family: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(family)
    asked = requests(2)
    async with paired(folder, kv_dtype="fp8") as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
    assert apart == await alone(folder, asked, kv_dtype="fp8")


@pytest.mark.parametrize(
    ("page", "chunk"),
    [(3, 7), pytest.param(1, 5, marks=pytest.mark.long), pytest.param(64, 64, marks=pytest.mark.long)],
)
async def test_odd_pages_and_chunks_change_nothing(hybrid: Path, page: int, chunk: int) -> None:
    asked = requests(3, (1, 22, 23, 24, 25, 70))
    async with paired(hybrid, page_tokens=page, chunk_tokens=chunk, kv_dtype="fp8") as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
    assert apart == await alone(hybrid, asked, kv_dtype="fp8")


async def test_a_prefix_that_decode_holds_is_continued_with_pages_that_arrive(hybrid: Path) -> None:
    asked = requests(4, (150,))
    (other,) = requests(5, (190,))
    longer = [replace(other, request_id=RequestId("longer"), prompt=(*asked[0].prompt, *other.prompt[150:]))]
    async with paired(hybrid, kv_dtype="fp8", extend_tokens=0) as pair:
        apart = [*await pair.ask(asked), *await pair.ask(longer)]
        await pair.emptied()
    assert apart == await alone(hybrid, [*asked, *longer], kv_dtype="fp8")


@pytest.mark.parametrize("ours", ["", "fp8"])
async def test_workers_that_store_keys_differently_are_refused_by_name(hybrid: Path, ours: str) -> None:
    theirs = {"": "fp8", "fp8": ""}[ours]
    async with paired(hybrid, kv_dtype=ours, prefill={"kv_dtype": theirs}) as pair:
        (answer,) = await pair.ask(requests(6, (40,)))
        assert isinstance(answer.error, PrefillUnavailable)
        assert "the two processes do not serve the same thing" in answer.error.message
        for component in ("full", "window"):
            for types in ("float32", "float8_e4m3 and float32"):
                assert re.search(rf"{component}: [^,]*, [^,]*, {types} tensors", answer.error.message)
        await pair.emptied()


@pytest.mark.long
@pytest.mark.parametrize("family", ["hybrid", "sliding", "dense"])
async def test_requests_come_back_from_host_memory_with_codes_and_scales(
    family: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(family)
    asked = [asking(number, 20 + 13 * number, 40 + number) for number in range(4)]
    async with paired(folder, kv_dtype="fp8", retraction=FORCED, max_len=256) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        seen = (await pair.decode.worker.status()).retraction
    assert found == await alone(folder, asked, kv_dtype="fp8", max_len=256)
    assert seen.by_test == seen.resumed > 10
    assert (seen.recomputed, seen.mismatched, seen.recomputed_tokens) == (0, 0, 0)
