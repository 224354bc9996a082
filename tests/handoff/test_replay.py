"""Matrix states that decode writes only every L steps: whoever else reads one finds it whole, and no token changes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from segue.errors import ConfigError
from segue.wire import GenerateSpec
from tests.handoff.pair import Answer, Pair, alone, engine_config, loading, paired
from tests.handoff.test_retraction import FORCED, SHORT, asking
from tests.handoff.test_reuse import prompt

WITH_RINGS: dict[str, object] = {"state_bytes": 860_000 + 142_560}
"""What is short for requests without rings, and rings."""
LENGTHS = [8, pytest.param(16, marks=pytest.mark.long), pytest.param(32, marks=pytest.mark.long)]


def assert_same(found: Sequence[Answer], wanted: Sequence[Answer]) -> None:
    """The same tokens; logprobs differ by what other orders of the same sums do."""
    assert [one.error for one in found] == [None] * len(wanted)
    assert [one.tokens for one in found] == [one.tokens for one in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=2e-5)


async def plainly(folder: Path, asked: Sequence[GenerateSpec], **changes: object) -> list[Answer]:
    return await alone(folder, asked, **changes)


async def checked(pair: Pair) -> None:
    """Nothing is left pending once nobody runs."""
    await pair.emptied()
    pair.decode_engine.check()
    assert (await pair.decode.worker.status()).replay.pending == 0


@pytest.mark.parametrize("length", LENGTHS)
async def test_answers_are_those_of_plain_steps(hybrid: Path, length: int) -> None:
    asked = [asking(number, 20 + 13 * number, 60 + number) for number in range(6)]
    async with paired(hybrid, replay_length=length, deterministic=False, max_len=256) as pair:
        found = await pair.ask(asked)
        await checked(pair)
        seen = (await pair.decode.worker.status()).replay
        assert (await pair.prefill.worker.status()).replay.steps == 0
    assert_same(found, await plainly(hybrid, asked))
    # The first token comes with the state. Rings are not full more often than once in L steps.
    assert seen.steps == sum(59 + number for number in range(6))
    assert 0 < seen.folds_full <= seen.steps // length


async def test_a_request_that_is_taken_off_the_device_takes_its_whole_state_along(hybrid: Path) -> None:
    asked = [asking(number, 20 + 13 * number, 40 + number) for number in range(6)]
    async with paired(hybrid, retraction=FORCED, replay_length=8, deterministic=False, max_len=256) as pair:
        found = await pair.ask(asked)
        await checked(pair)
        status = await pair.decode.worker.status()
    assert_same(found, await plainly(hybrid, asked))
    assert status.retraction.resumed > 10
    assert status.retraction.recomputed == 0
    assert 0 < status.replay.folds_read <= status.retraction.resumed


@pytest.mark.long
async def test_short_memory_and_rings_end_every_request_right(hybrid: Path) -> None:
    asked = [asking(number, 40 + 9 * number, 110) for number in range(8)]
    async with paired(
        hybrid, retraction=SHORT, decode=WITH_RINGS, replay_length=16, deterministic=False, max_len=256
    ) as pair:
        found = await pair.ask(asked)
        await checked(pair)
    assert_same(found, await plainly(hybrid, asked))


@pytest.mark.long
@pytest.mark.parametrize(("page", "strategy"), [(8, "extra_buffer"), (1, "no_buffer")])
async def test_a_second_turn_resumes_what_replayed_steps_left(hybrid: Path, page: int, strategy: str) -> None:
    """At the same depth as without rings: a finished request's key is never shortened by what was pending."""
    seen = []
    for length in (1, 8):
        async with paired(
            hybrid,
            extend_tokens=200,
            deterministic=False,
            page_tokens=page,
            checkpoint_strategy=strategy,
            track_interval=64,
            replay_length=length,
        ) as pair:
            asked = asking(1, 70, 150)
            (first,) = await pair.ask([asked])
            await checked(pair)
            second = replace(asking(2, 1, 20), prompt=(*asked.prompt, *first.tokens, *prompt(20, 5)))
            (again,) = await pair.ask([second])
            await checked(pair)
            seen.append(([first, again], (await pair.decode.worker.status()).cache))
    (plain, plain_cache), (replayed, cache) = seen
    assert_same(replayed, plain)
    assert replayed[1].usage == plain[1].usage
    assert cache.hits == plain_cache.hits
    assert cache.checkpoints_resumed == plain_cache.checkpoints_resumed > 0


async def test_impossible_mixes_are_refused_by_name(hybrid: Path, dense: Path) -> None:
    with pytest.raises(ConfigError, match="replay_length 8 and engine"):
        engine_config(hybrid, "both", replay_length=8, deterministic=True)
    with pytest.raises(ConfigError, match="it must be one of 1, 8, 16, 32"):
        engine_config(hybrid, "both", replay_length=7)
    with pytest.raises(ConfigError, match="has no recurrent layers"):
        loading(engine_config(dense, "both", replay_length=8, deterministic=False))()
