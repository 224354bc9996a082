"""In deterministic mode an output does not depend on where its prompt was computed, to the bit."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.wire import GenerateSpec
from tests.decode_service.router_end import spec
from tests.handoff.pair import alone, paired
from tests.support.checkpoints import VOCAB

LENGTHS = (1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 150)


def requests(seed: int, lengths: tuple[int, ...] = LENGTHS) -> list[GenerateSpec]:
    """One request of each length: greedy and sampled, with and without logprobs, penalties and stop tokens."""
    rng = random.Random(seed)
    made = []
    for i, length in enumerate(lengths):
        sampling = SamplingParams(
            seed=rng.randrange(2**40),
            choice=i % 3,
            temperature=rng.choice([0.0, 0.8]),
            logprobs=rng.choice([None, 0, 3]),
            repetition_penalty=rng.choice([1.0, 1.3]),
            max_tokens=rng.randint(2, 30),
            stop_token_ids=tuple(rng.sample(range(VOCAB), 2)),
        )
        prompt = tuple(rng.randrange(2, VOCAB) for _ in range(length))
        made.append(replace(spec(f"q{i}"), prompt=prompt, sampling=sampling))
    return made


@pytest.mark.parametrize("transport", ["local", "nixl", "grpc"])
async def test_outputs_are_those_of_one_worker(hybrid: Path, transport: str) -> None:
    asked = requests(1)
    async with paired(hybrid, transports=transport) as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
        status = await pair.decode.worker.status()
        assert status.transfers.count > len(asked) // 2
        assert status.prefill_tokens == 0
    assert apart == await alone(hybrid, asked)


@pytest.mark.parametrize("family", ["sliding", "dense"])
async def test_models_without_some_component_hand_over_what_they_have(
    family: str, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(family)
    asked = requests(2)
    async with paired(folder) as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
    assert apart == await alone(folder, asked)


@pytest.mark.parametrize(("page", "chunk"), [(3, 7), (64, 64), pytest.param(1, 5, marks=pytest.mark.long)])
async def test_odd_pages_and_chunks_change_nothing(hybrid: Path, page: int, chunk: int) -> None:
    asked = requests(3, (1, 22, 23, 24, 25, 70))
    async with paired(hybrid, page_tokens=page, chunk_tokens=chunk) as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
    assert apart == await alone(hybrid, asked, page_tokens=page, chunk_tokens=chunk)


async def test_a_continuation_goes_on_where_it_stood(hybrid: Path) -> None:
    asked = [replace(one, sampling=replace(one.sampling, max_tokens=24)) for one in requests(4, (5, 40))]
    whole = await alone(hybrid, asked)
    rest = [
        replace(one, emitted=tuple(answer.tokens[: len(answer.tokens) // 2]))
        for one, answer in zip(asked, whole, strict=True)
    ]
    async with paired(hybrid) as pair:
        continued = await pair.ask(rest)
    for answer, part, one in zip(whole, continued, rest, strict=True):
        assert list(one.emitted) + part.tokens == answer.tokens


async def test_an_output_of_one_token_reserves_and_sends_nothing(hybrid: Path) -> None:
    asked = [replace(one, sampling=replace(one.sampling, max_tokens=1, logprobs=2)) for one in requests(5, (1, 9, 64))]
    async with paired(hybrid) as pair:
        apart = await pair.ask(asked)
        await pair.emptied()
        assert (await pair.decode.worker.status()).transfers.count == 0
    assert apart == await alone(hybrid, asked)
    assert all(answer.usage[1] == 1 for answer in apart)


async def test_a_first_token_that_stops_the_output_ends_it(hybrid: Path) -> None:
    (asked,) = requests(6, (40,))
    greedy = replace(asked, sampling=SamplingParams(seed=1, temperature=0.0, max_tokens=9))
    (free,) = await alone(hybrid, [greedy])
    stopped = replace(greedy, sampling=replace(greedy.sampling, stop_token_ids=(free.tokens[0],)))
    async with paired(hybrid) as pair:
        (answer,) = await pair.ask([stopped])
        await pair.emptied()
    assert (answer.tokens, answer.reason) == (free.tokens[:1], FinishReason.STOP)
