"""Messages between two workers are cut, repeated, late or out of order: a right answer or an error, and no loss."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.errors import PrefillUnavailable, ServingError
from segue.ids import Handle
from segue.v1 import transfer_pb2 as pb
from segue.wire import Cancel, GenerateSpec
from tests.decode_service.router_end import spec
from tests.handoff.disturbances import RECEIVER, SENDER, Damage, Recording, late, repeated, shorn, swapped
from tests.handoff.pair import Answer, Pair, alone, paired
from tests.support.wire_proxy import Disturbance, Messages, WireProxy, unchanged

pytestmark = pytest.mark.long

PROMPT = tuple(2 + i * 7 % 90 for i in range(64))
CHUNKED: dict[str, Any] = {"chunk_tokens": 8, "step_tokens": 8, "max_running": 4}
# How much of a message is left.
CUTS: tuple[Callable[[bytes], bytes], ...] = (
    lambda message: b"",
    lambda message: message[: len(message) // 3],
    lambda message: message[: len(message) // 2],
    lambda message: message[:-2],
    lambda message: message[:-1],
)
# What is said in every handoff, and in how many fields at most.
SAID = {
    "start": (RECEIVER, 4),
    "grant": (RECEIVER, 7),
    "renewed": (RECEIVER, 2),
    "ask": (SENDER, 2),
    "progress": (SENDER, 3),
    "blocks": (SENDER, 5),
    "finished": (SENDER, 5),
    "settled": (SENDER, 1),
}


def asked(name: str = "q") -> GenerateSpec:
    sampling = SamplingParams(seed=1, temperature=0.0, max_tokens=6, ignore_eos=True)
    return replace(spec(name), prompt=PROMPT, sampling=sampling)


@dataclass(frozen=True)
class Wire:
    """A pair whose decode worker may be sent through a proxy, and what it answers to `asked` when nothing is wrong."""

    transport: str
    pair: Pair
    proxy: WireProxy
    right: Answer

    async def ask(self, name: str = "q") -> Answer:
        """Over the bad wire."""
        return await self.pair.end(await self.begin(name))

    async def begin(self, name: str = "q") -> Handle:
        return await self.pair.router.generate(replace(asked(name), prefill_address=self.proxy.address))

    async def whole(self) -> None:
        """Both workers live, hold nothing, and answer over the same wire once that is good again."""
        for worker in (self.pair.prefill.worker, self.pair.decode.worker):
            assert not worker.broken.done(), worker.broken.result()
        await self.pair.emptied()
        self.proxy.up.clear()
        self.proxy.down.clear()
        assert await self.ask("after") == self.right
        await self.pair.emptied()


@pytest.fixture(params=["nixl", "grpc"])
async def wire(request: pytest.FixtureRequest, hybrid: Path) -> AsyncIterator[Wire]:
    async with opened(request.param, hybrid) as made:
        yield made


@asynccontextmanager
async def opened(transport: str, folder: Path) -> AsyncIterator[Wire]:
    (right,) = await alone(folder, [asked()])
    async with (
        paired(folder, transports=transport, silence_s=5.0, lease_s=5.0, **CHUNKED) as pair,
        WireProxy(pair.prefill.address) as proxy,
    ):
        yield Wire(transport, pair, proxy, right)


def right_or_refused(wire: Wire, answer: Answer) -> bool:
    """Whether the answer is right. Asserts that it is an error with a word otherwise, without a token."""
    if answer.error is None:
        assert answer == wire.right
        return True
    assert isinstance(answer.error, ServingError)
    assert answer.error.message
    assert answer.tokens == []
    return False


async def damaged(wire: Wire, kind: str, change: Callable[[bytes], bytes], name: str) -> bool:
    """Whether a request is answered, one of whose messages is changed; one beside it is, and no page is lost."""
    kinds = SAID[kind][0]
    damage = Damage(kind, kinds, change)
    (wire.proxy.up if kinds is RECEIVER else wire.proxy.down)["Prefill"] = damage
    handles = await wire.begin(name), await wire.pair.begin(asked("beside"))
    answer, beside = [await wire.pair.end(handle) for handle in handles]
    if kind != "blocks" or wire.transport != "nixl":
        await damage.until_done()
    assert beside == wire.right
    await wire.pair.emptied()
    return right_or_refused(wire, answer)


@pytest.mark.parametrize("kind", SAID)
async def test_a_message_that_is_cut_costs_its_own_request_at_most(wire: Wire, kind: str) -> None:
    for number, change in enumerate(CUTS):
        await damaged(wire, kind, change, f"cut-{number}")
    await wire.whole()


@pytest.mark.parametrize("kind", SAID)
async def test_a_message_that_lacks_its_last_fields_costs_its_own_request_at_most(wire: Wire, kind: str) -> None:
    kinds, fields_max = SAID[kind]
    for fields in range(fields_max):
        await damaged(wire, kind, partial(shorn, kinds=kinds, fields=fields), f"{fields}-left")
    await wire.whole()


async def test_a_withdrawal_that_is_cut_ends_the_quarantine_all_the_same(wire: Wire) -> None:
    for number, change in enumerate(CUTS):
        damage = wire.proxy.up["Prefill"] = Damage("withdraw", RECEIVER, change)
        wire.pair.prefill_gate.close()
        handle = await wire.begin(f"q{number}")
        await wire.pair.until(wire.pair.decode.worker, lambda status: status.promised == 1)
        await wire.pair.stream.send(Cancel(handle, 1))
        assert (await wire.pair.end(handle)).reason is FinishReason.CANCELLED
        wire.pair.prefill_gate.open()
        await wire.pair.emptied()
        assert damage.done
    await wire.whole()


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("method", ["Connect", "SelfTest"])
async def test_an_introduction_that_is_cut_is_refused_and_then_made_whole(
    wire: Wire, method: str, direction: str
) -> None:
    if (method, wire.transport) == ("SelfTest", "grpc"):
        return  # Messages need no test: the peer has answered.
    for number, change in enumerate((*CUTS, without_process)):

        async def cut(messages: Messages, change: Callable[[bytes], bytes] = change) -> Messages:
            async for message in messages:
                yield change(message)

        getattr(wire.proxy, direction)[method] = cut
        answer = await wire.ask(f"q{number}")
        # An empty answer says as much as a whole one where there is nothing to say.
        if (method, direction) != ("SelfTest", "down"):
            assert isinstance(answer.error, PrefillUnavailable), answer
        await wire.pair.emptied()
    await wire.whole()


def without_process(message: bytes) -> bytes:
    """An introduction whose last field was lost; any other message as a third."""
    introduction = pb.Introduction.FromString(message) if len(message) > 300 else None
    if introduction is None:
        return message[: len(message) // 3]
    introduction.ClearField("process")
    return introduction.SerializeToString()


async def test_transport_metadata_that_is_cut_is_refused_and_then_made_whole(hybrid: Path) -> None:
    async def cut(messages: Messages) -> Messages:
        async for message in messages:
            introduction = pb.Introduction.FromString(message)
            introduction.nixl.metadata = introduction.nixl.metadata[:-40]
            yield introduction.SerializeToString()

    async with opened("nixl", hybrid) as wire:
        for disturbed in (wire.proxy.up, wire.proxy.down):
            disturbed["Connect"] = cut
            answer = await wire.ask("cut")
            assert isinstance(answer.error, PrefillUnavailable)
            assert "arrived damaged" in answer.error.message
            disturbed.clear()
        await wire.whole()


async def both_ways(wire: Wire, up: Disturbance, down: Disturbance, count: int = 4) -> list[bool]:
    """Whether each of some requests at once over a bad wire is answered."""
    wire.proxy.up["Prefill"], wire.proxy.down["Prefill"] = up, down
    handles = [await wire.begin(f"q{number}") for number in range(count)]
    beside = await wire.pair.begin(asked("beside"))
    answers = [await wire.pair.end(handle) for handle in handles]
    assert await wire.pair.end(beside) == wire.right
    await wire.pair.emptied()
    return [right_or_refused(wire, answer) for answer in answers]


async def test_messages_that_come_several_times_change_nothing(wire: Wire) -> None:
    assert await both_ways(wire, repeated, repeated) == [True] * 4
    await wire.whole()


async def test_messages_that_come_late_change_nothing(wire: Wire) -> None:
    assert await both_ways(wire, late, late) == [True] * 4
    await wire.whole()


@pytest.mark.parametrize("period", [2, pytest.param(3, marks=pytest.mark.slow), 5])
async def test_messages_that_overtake_each_other_cost_their_own_request_at_most(wire: Wire, period: int) -> None:
    await both_ways(wire, swapped(period), unchanged)
    await both_ways(wire, unchanged, swapped(period))
    await both_ways(wire, swapped(period), swapped(period))
    await wire.whole()


async def test_messages_of_an_older_call_change_nothing_in_a_newer_one(wire: Wire) -> None:
    up, down = Recording(RECEIVER), Recording(SENDER)
    assert await both_ways(wire, up.keep, down.keep, 1) == [True]
    assert await both_ways(wire, up.play, down.play) == [True] * 4
    await wire.whole()


@pytest.mark.parametrize("chunks", [0, 3])
async def test_a_connection_that_breaks_under_a_handoff_costs_an_error_and_no_page(wire: Wire, chunks: int) -> None:
    wire.pair.prefill_gate.close()
    handle = await wire.begin()
    await wire.pair.until(wire.pair.decode.worker, lambda status: status.promised == 1)
    wire.pair.prefill_gate.allow(chunks)
    await wire.proxy.restart()
    answer = await wire.pair.end(handle)
    assert not right_or_refused(wire, answer)
    assert isinstance(answer.error, PrefillUnavailable)
    wire.pair.prefill_gate.open()
    await wire.whole()


async def test_a_state_that_has_arrived_needs_its_sender_no_more(wire: Wire) -> None:
    wire.pair.decode_gate.close()
    damage = wire.proxy.down["Prefill"] = Damage("settled", SENDER, lambda message: b"")
    handle = await wire.begin()
    await wire.pair.stream.until(lambda a: handle in a.tokens)
    await wire.proxy.restart()
    wire.pair.decode_gate.open()
    assert await wire.pair.end(handle) == wire.right
    assert damage.done
    await wire.whole()


async def test_a_prefill_worker_is_told_the_salt_of_a_request(wire: Wire) -> None:
    salts: list[str] = []

    async def watched(messages: Messages) -> Messages:
        async for message in messages:
            said = pb.ReceiverMessage.FromString(message)
            if said.HasField("start"):
                salts.append(said.start.request.cache_salt)
            yield message

    wire.proxy.up["Prefill"] = watched
    salted = replace(asked("salted"), prefill_address=wire.proxy.address, cache_salt="a")
    assert await wire.pair.end(await wire.pair.router.generate(salted)) == wire.right
    assert salts == ["a"]
    await wire.whole()
