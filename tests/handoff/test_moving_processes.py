"""Decode workers as processes that drain, die or freeze while requests move: streams go on, and nothing is left."""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace

import httpx
import pytest
from openai import AsyncOpenAI

from segue.batch.request import FinishReason
from segue.batch.sampling import SamplingParams
from segue.batch.submission import Moved
from segue.errors import TransferFailed
from segue.wire import GenerateSpec, Heartbeat
from tests.decode_service.router_end import Attachment, RouterEnd, spec
from tests.handoff.processes import Process, flags, whole

pytestmark = pytest.mark.cluster

SETTINGS = ("transfer.transports=nixl,grpc", "transfer.keep_s=20", "worker.heartbeat_s=0.2", "engine.max_running=32")
QUESTIONS = tuple(f"Tom has {n} apples and buys {n + 3} more. How many apples does he have now?" for n in range(2, 10))
NUMBERS = itertools.count()


class Decodes:
    """A prefill worker and two decode workers, started again under their old addresses where they have ended."""

    def __init__(self) -> None:
        self.prefill = Process(["prefill", *flags(*SETTINGS)])
        self.workers = [Process(["decode", *flags(*SETTINGS)]) for _ in range(2)]
        self.restore()
        named = [part for worker in self.workers for part in ("--decode", worker.address)]
        router = ["router", "--port", "0", "--prefill", self.prefill.address, *named]
        self.router = Process([*router, *flags("router.reattach_grace_s=0.5")])
        self.url = self.router.wait_ready()

    def restore(self) -> None:
        self.prefill.wait_ready()
        for index, worker in enumerate(self.workers):
            if worker.address:
                worker.wake()
            if worker.ended:
                self.workers[index] = Process(["decode", *flags(*SETTINGS, f"worker.port={worker.port}")])
            self.workers[index].wait_ready()

    def close(self) -> None:
        for process in (self.router, self.prefill, *self.workers):
            process.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Decodes]:
    with closing(Decodes()) as decodes:
        yield decodes


@pytest.fixture
def decodes(started: Decodes) -> Decodes:
    started.restore()
    return started


@dataclass
class Left:
    """A request that has left the first worker, which is about to end and keeps its state."""

    again: GenerateSpec
    target: RouterEnd
    stream: Attachment

    async def outcome(self) -> Exception | None:
        """What comes of it at the second worker."""
        handle = await self.target.generate(self.again)
        await self.stream.until(lambda a: handle in a.ended)
        return self.stream.ended[handle].error


@asynccontextmanager
async def left(decodes: Decodes) -> AsyncIterator[Left]:
    asked = replace(
        spec(f"q{next(NUMBERS)}"),
        prompt=tuple(3 + i * 37 % 2000 for i in range(700)),
        sampling=SamplingParams(seed=1, temperature=0.0, max_tokens=300, ignore_eos=True),
        prefill_address=decodes.prefill.address,
    )
    source, target = decodes.workers
    async with (
        RouterEnd(source.address) as router,
        router.attach() as stream,
        RouterEnd(target.address) as other,
        other.attach() as there,
    ):
        handle = await router.generate(asked)
        await stream.until(lambda a: len(a.tokens.get(handle, ())) > 2)
        source.send(signal.SIGTERM)
        beats = stream.beats
        await stream.until(lambda a: a.beats > beats)
        await stream.send(Heartbeat(1, elsewhere=True))
        await stream.until(lambda a: handle in a.ended)
        assert stream.ended[handle].reason is FinishReason.MOVED
        emitted = tuple(token for _, _, token in stream.tokens[handle])
        moved = Moved(source.address, handle, 1)
        yield Left(replace(asked, prefill_address="", attempt=2, emitted=emitted, moved=moved), other, there)


async def test_a_worker_that_died_with_the_state_costs_an_error_and_no_page(decodes: Decodes) -> None:
    async with left(decodes) as request:
        decodes.workers[0].kill()
        assert isinstance(await request.outcome(), TransferFailed)
        decodes.workers[1].until(whole)


async def test_a_worker_that_froze_with_the_state_is_given_up(decodes: Decodes) -> None:
    async with left(decodes) as request:
        decodes.workers[0].send(signal.SIGSTOP)
        assert isinstance(await request.outcome(), TransferFailed)
        decodes.workers[0].kill()
        decodes.workers[1].until(whole)


async def test_a_worker_that_dies_while_it_sends_leaves_the_sets_whole(decodes: Decodes) -> None:
    async with left(decodes) as request:
        handle = await request.target.generate(request.again)
        decodes.workers[0].kill()
        await request.stream.until(lambda a: handle in a.ended)
        error = request.stream.ended[handle].error
        assert error is None or isinstance(error, TransferFailed)
        decodes.workers[1].until(whole)


async def test_a_worker_whose_receiver_dies_gives_the_state_up_and_ends(decodes: Decodes) -> None:
    async with left(decodes) as request:
        await request.target.generate(request.again)
        decodes.workers[1].kill()
        # Whether it was fetched or not: nothing keeps the worker from ending.
        await asyncio.to_thread(decodes.workers[0].wait_ended, 25)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_streams_through_a_router_survive_a_worker_that_ends(decodes: Decodes, number: signal.Signals) -> None:
    async with AsyncOpenAI(base_url=f"{decodes.url}/v1", api_key="none", max_retries=0, timeout=120) as openai:
        await both_known(decodes)
        before = await answers(openai)
        earlier = decodes.workers[1].until(whole).transfers.moved_in
        found = await answers(openai, decodes.workers[0], number)
    assert found == before
    await asyncio.to_thread(decodes.workers[0].wait_ended, 20)
    status = decodes.workers[1].until(whole)
    assert status.prefill_tokens == 0
    assert (status.transfers.moved_in > earlier) == (number is signal.SIGTERM)


async def both_known(decodes: Decodes) -> None:
    """Until the router has met both workers."""
    async with httpx.AsyncClient(base_url=decodes.url) as http, asyncio.timeout(30):
        while True:
            listed = (await http.get("/workers")).json()["workers"]
            if all(worker["state"] == "ready" and worker["breaker"] != "open" for worker in listed):
                return


async def answers(
    openai: AsyncOpenAI, worker: Process | None = None, number: signal.Signals | None = None
) -> list[str]:
    """All questions at once, streamed; when every one is being answered, a worker gets a signal."""
    begun = 0

    async def one(question: str) -> str:
        nonlocal begun
        stream = await openai.chat.completions.create(
            model="segue-zoo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=160,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        parts: list[str] = []
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                parts.append(chunk.choices[0].delta.content)
                begun += len(parts) == 1
                if worker is not None and number is not None and begun == len(QUESTIONS) and len(parts) == 1:
                    worker.send(number)
        return "".join(parts)

    return await asyncio.gather(*(one(question) for question in QUESTIONS))
