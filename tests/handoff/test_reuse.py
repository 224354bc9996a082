"""What decode holds of a prompt does not travel again, and what follows the state makes the prompt resumable here."""

from dataclasses import replace
from pathlib import Path

import pytest

from segue.batch.sampling import SamplingParams
from segue.cache.figures import ChosenPrompts
from segue.ids import RequestId
from segue.wire import GenerateSpec
from tests.decode_service.router_end import spec
from tests.handoff.pair import Pair, alone, paired
from tests.support.checkpoints import VOCAB


def prompt(count: int, start: int = 0) -> tuple[int, ...]:
    return tuple(2 + (start + 7 * i + i * i) % (VOCAB - 2) for i in range(count))


def asking(name: str, tokens: tuple[int, ...], output: int = 6) -> GenerateSpec:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=output, logprobs=0, ignore_eos=True)
    return replace(spec(name), prompt=tokens, sampling=sampling)


async def bytes_so_far(pair: Pair) -> int:
    return (await pair.decode.worker.status()).transfers.bytes


@pytest.mark.parametrize("transport", ["local", "nixl", pytest.param("grpc", marks=pytest.mark.long)])
async def test_full_pages_that_decode_holds_do_not_travel_again(hybrid: Path, transport: str) -> None:
    asked = [asking("a", prompt(200)), asking("b", (*prompt(200), *prompt(40, 5)))]
    async with paired(hybrid, transports=transport, extend_tokens=0) as pair:
        first = await pair.ask(asked[:1])
        await pair.emptied()
        once = await bytes_so_far(pair)
        second = await pair.ask(asked[1:])
        again = await pair.ask([replace(asked[0], request_id=RequestId("c"))])
        await pair.emptied()
        # 25 full pages lie here already; window and recurrent state always travel.
        assert await bytes_so_far(pair) - once < 2 * once
    assert [*first, *second] == await alone(hybrid, asked)
    assert again == first


@pytest.mark.parametrize("transport", ["local", "nixl", pytest.param("grpc", marks=pytest.mark.long)])
async def test_a_prompt_is_resumable_on_decode_once_its_checkpoint_has_followed(hybrid: Path, transport: str) -> None:
    asked = [asking("a", prompt(200)), asking("b", (*prompt(200), *prompt(20, 5)))]
    async with paired(hybrid, transports=transport, extend_tokens=32) as pair:
        first = await pair.ask(asked[:1])
        await pair.emptied()
        second = await pair.ask(asked[1:])
        await pair.emptied()
        status = await pair.decode.worker.status()
        # From the checkpoint at 192 on: nothing went to the prefill worker.
        assert status.transfers.count == 1
        assert status.prefill_tokens == 220 - 192
    assert [*first, *second] == await alone(hybrid, asked)


async def test_a_second_turn_is_extended_where_the_first_was_decoded(hybrid: Path) -> None:
    asked = asking("a", prompt(150), output=60)
    async with paired(hybrid, extend_tokens=80, track_interval=64) as pair:
        (first,) = await pair.ask([asked])
        turn = asking("b", (*asked.prompt, *first.tokens, *prompt(10, 5)))
        (second,) = await pair.ask([turn])
        await pair.emptied()
        status = await pair.decode.worker.status()
        assert status.transfers.count == 1
        # From the checkpoint at 192 on, which it came by while it decoded.
        assert status.prefill_tokens == 220 - 192
    assert [first, second] == await alone(hybrid, [asked, turn])


async def test_a_long_suffix_goes_to_the_prefill_worker(hybrid: Path) -> None:
    asked = [asking("a", prompt(200)), asking("b", (*prompt(200), *prompt(100, 5)))]
    async with paired(hybrid, extend_tokens=32) as pair:
        first = await pair.ask(asked[:1])
        second = await pair.ask(asked[1:])
        await pair.emptied()
        status = await pair.decode.worker.status()
        assert status.transfers.count == 2
        assert status.prefill_tokens == 0
    assert [*first, *second] == await alone(hybrid, asked)


async def test_a_suffix_whose_beginning_is_evicted_while_it_waits_goes_to_the_prefill_worker(hybrid: Path) -> None:
    asked = [asking("a", prompt(200)), asking("grows", prompt(20, 3), 120), asking("b", (*prompt(200), *prompt(20, 5)))]
    async with paired(hybrid, extend_tokens=32, max_running=1, max_len=300, state_bytes=225_000) as pair:
        first = await pair.ask(asked[:1])
        await pair.emptied()
        growing = await pair.begin(asked[1])
        await pair.until(pair.decode.worker, lambda status: status.running == 1)
        waiting = await pair.begin(asked[2])
        answers = [*first, await pair.end(growing), await pair.end(waiting)]
        await pair.emptied()
        cache = (await pair.decode.worker.status()).cache
    assert cache.prompts == (
        ChosenPrompts("decode", "short", 1),
        ChosenPrompts("prefill", "evicted", 1),
        ChosenPrompts("prefill", "long", 1),
        ChosenPrompts("prefill", "uncached", 1),
    )
    assert answers == await alone(hybrid, asked)


async def test_a_checkpoint_that_comes_when_its_request_has_ended_serves_others(hybrid: Path) -> None:
    asked = [asking("a", prompt(200), output=2), asking("b", (*prompt(200), *prompt(20, 5)))]
    async with paired(hybrid, extend_tokens=32) as pair:
        first = await pair.ask(asked[:1])
        await pair.emptied()
        second = await pair.ask(asked[1:])
        await pair.emptied()
        assert (await pair.decode.worker.status()).transfers.count == 1
    assert [*first, *second] == await alone(hybrid, asked)


async def test_salts_share_nothing_on_either_side(hybrid: Path) -> None:
    asked = replace(asking("a", prompt(200)), cache_salt="one")
    async with paired(hybrid, extend_tokens=64) as pair:
        first = await pair.ask([asked])
        await pair.emptied()
        once = await bytes_so_far(pair)
        second = await pair.ask([replace(asked, request_id=RequestId("b"), cache_salt="two")])
        await pair.emptied()
        assert await bytes_so_far(pair) == 2 * once
    assert first == second
