"""Many requests of mixed lengths, with clients that leave at any moment, over two prefill and two decode workers."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.host import Host
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.loading import Loaded
from kv_transfer.hosting.neighbours import Neighbours
from prefill_service.host import PrefillHost
from segue.batch.request import FinishReason
from segue.wire import Cancel, GenerateSpec
from tests.decode_service.router_end import Attachment, RouterEnd
from tests.handoff.pair import QUICK, Answer, alone, answer_of, engine_config, loading, whole
from tests.handoff.test_equality import requests

AT_ONCE = 10


class Four:
    """Two workers of each kind, all in this process."""

    def __init__(self) -> None:
        self.prefills: list[PrefillHost] = []
        self.decodes: list[Host] = []
        self.loaded: list[Loaded] = []
        self.ends: list[tuple[RouterEnd, Attachment]] = []

    @property
    def hosts(self) -> list[PrefillHost | Host]:
        return [*self.prefills, *self.decodes]

    async def start(self, folder: Path, transports: str, stack: AsyncExitStack) -> None:
        transfer = TransferConfig(transports=transports, verify=True, heartbeat_s=0.2, silence_s=60.0)
        neighbours = Neighbours()
        self.prefills = [PrefillHost(QUICK, transfer, neighbours) for _ in range(2)]
        self.decodes = [Host(QUICK, transfer, neighbours) for _ in range(2)]
        for host in self.hosts:
            role = "prefill" if isinstance(host, PrefillHost) else "decode"
            await host.start(self._keeping(folder, role))
            stack.push_async_callback(host.stop)
            stack.push_async_callback(host.worker.drain, 0.1)
        for decode in self.decodes:
            router = await stack.enter_async_context(RouterEnd(decode.address))
            self.ends.append((router, await stack.enter_async_context(router.attach())))

    def _keeping(self, folder: Path, role: str) -> Callable[[], Loaded]:
        build = loading(engine_config(folder, role, max_running=6))

        def keep() -> Loaded:
            self.loaded.append(build())
            return self.loaded[-1]

        return keep


@asynccontextmanager
async def four(folder: Path, transports: str) -> AsyncIterator[Four]:
    async with AsyncExitStack() as stack:
        made = Four()
        await made.start(folder, transports, stack)
        yield made


async def run(made: Four, asked: list[GenerateSpec], seed: int) -> list[tuple[Answer, bool]]:
    """Everything, half of it over each decode worker; about one request in four is cancelled at a random moment."""
    halves = await asyncio.gather(*(half(made, index, asked[index::2], seed) for index in range(2)))
    return [answer for pair in zip(*halves, strict=True) for answer in pair]


async def half(made: Four, index: int, asked: list[GenerateSpec], seed: int) -> list[tuple[Answer, bool]]:
    """Over one decode worker, so many at once. Each answer, and whether its client left."""
    router, stream = made.ends[index]
    rng = random.Random(seed + index)
    answers: list[tuple[Answer, bool]] = []
    for start in range(0, len(asked), AT_ONCE):
        batch = [
            replace(spec, prefill_address=made.prefills[rng.randrange(2)].address)
            for spec in asked[start : start + AT_ONCE]
        ]
        handles = await asyncio.gather(*(router.generate(spec) for spec in batch))
        left = set()
        for handle in handles:
            if rng.random() < 0.25:
                heard = len(stream.messages) + rng.randrange(6)
                await stream.until(lambda a: len(a.messages) >= heard or all(one in a.ended for one in handles))  # noqa: B023
                await stream.send(Cancel(handle, 1))
                left.add(handle)
        await stream.until(lambda a: all(handle in a.ended for handle in handles))  # noqa: B023
        answers += [(answer_of(stream, handle), handle in left) for handle in handles]
        stream.messages.clear()
    return answers


async def soak(folder: Path, count: int, seed: int, transports: str) -> None:
    rng = random.Random(seed)
    lengths = tuple(rng.choice((1, 3, 8, 9, 30, 33, 64, 100, 200)) for _ in range(count))
    asked = requests(seed, lengths)
    async with four(folder, transports) as made:
        answers = await run(made, asked, seed)
        await emptied(made)
        for loaded in made.loaded:
            # Their threads are asleep: nothing is left to do.
            loaded.engine.check()
    expected = await alone(folder, asked)
    for (answer, left), whole_answer in zip(answers, expected, strict=True):
        if left:
            # It may have ended by itself, but is told no more of it.
            assert answer.tokens == whole_answer.tokens[: len(answer.tokens)]
        else:
            assert answer == whole_answer
    assert any(answer.reason is FinishReason.CANCELLED for answer, _ in answers)


async def emptied(made: Four) -> None:
    """Until every pool of every worker is whole."""
    async with asyncio.timeout(20):
        for host in made.hosts:
            while not whole(await host.worker.status()):
                pass


@pytest.mark.long
async def test_forty_requests_over_four_workers_leak_nothing_and_are_as_ever(hybrid: Path) -> None:
    await soak(hybrid, 40, 1, "local")


@pytest.mark.slow
@pytest.mark.parametrize("transports", ["local", "grpc"])
async def test_a_thousand_requests_over_four_workers_leak_nothing_and_are_as_ever(
    hybrid: Path, transports: str
) -> None:
    await soak(hybrid, 1000, 2, transports)
