"""Clients of a router over two prefill and two decode workers, some of which die: every answer is whole and as ever."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.handoff.processes import Process, flags, whole

pytestmark = pytest.mark.cluster

QUESTIONS = tuple(f"Tom has {n} apples and buys {n + 3} more. How many apples does he have now?" for n in range(2, 8))
NAMES = ("prefill0", "prefill1", "decode0", "decode1")
SETTINGS = ("transfer.transports=nixl,grpc", "engine.max_running=4")


class Deployment:
    """Two workers of each kind and a router; what a test has killed is started again under its old address."""

    def __init__(self) -> None:
        settings = flags("transfer.transports=nixl,grpc", "engine.max_running=4")
        self.workers = {
            name: Process([name[:-1], *settings]) for name in ("prefill0", "prefill1", "decode0", "decode1")
        }
        addresses = {name: process.wait_ready() for name, process in self.workers.items()}
        named = [part for name, address in addresses.items() for part in (f"--{name[:-1]}", address)]
        self.router = Process(["router", "--port", "0", *flags("router.reattach_grace_s=0.5"), *named])
        self.url = self.router.wait_ready()

    def kill(self, name: str) -> None:
        self.workers[name].kill()

    def restore(self) -> None:
        """Until all are there."""
        for name, process in self.workers.items():
            process.wake()
            if process.ended:
                self.workers[name] = Process([name[:-1], *flags(*SETTINGS, f"worker.port={process.port}")])
            self.workers[name].wait_ready()

    def emptied(self) -> None:
        for process in self.workers.values():
            process.until(whole)

    def close(self) -> None:
        for process in (self.router, *self.workers.values()):
            process.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Deployment]:
    with closing(Deployment()) as deployment:
        yield deployment


@pytest.fixture
async def deployment(started: Deployment) -> Deployment:
    """All workers there, and known to the router."""
    started.restore()
    async with httpx.AsyncClient(base_url=started.url) as http, asyncio.timeout(90):
        while True:
            listed = (await http.get("/workers")).json()["workers"]
            if all(worker["state"] == "ready" and worker["breaker"] != "open" for worker in listed):
                return started


@asynccontextmanager
async def client(deployment: Deployment) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as openai:
        yield openai


async def answers(openai: AsyncOpenAI, kill: Deployment | None = None, name: str = "", count: int = 1) -> list[str]:
    """All questions at once, streamed. `name` is killed when so many of them have begun to be answered."""
    begun = 0

    async def one(question: str) -> str:
        nonlocal begun
        stream = await openai.chat.completions.create(
            model="segue-zoo",
            messages=[{"role": "user", "content": question}],
            temperature=0,
            max_tokens=60,
            stream=True,
        )
        parts: list[str] = []
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                parts.append(chunk.choices[0].delta.content)
                if len(parts) == 1:
                    begun += 1
                    if kill is not None and begun == count:
                        kill.kill(name)
        return "".join(parts)

    return await asyncio.gather(*(one(question) for question in QUESTIONS))


# Either of a kind is asked as much as the other.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name.endswith("1") else ()) for name in NAMES]
)
async def test_an_answer_survives_the_death_of_any_worker(deployment: Deployment, name: str) -> None:
    async with client(deployment) as openai:
        before = await answers(openai)
        assert all(before)
        assert await answers(openai, deployment, name) == before
    deployment.restore()
    deployment.emptied()


async def test_several_choices_of_one_prompt_are_those_of_one_worker(deployment: Deployment) -> None:
    async with client(deployment) as openai:
        body: dict[str, Any] = {"prompt": QUESTIONS[0], "temperature": 1.0, "seed": 7, "max_tokens": 12, "logprobs": 2}
        body["extra_body"] = {"ignore_eos": True}
        together = await openai.completions.create(model="segue-zoo", n=3, **body)
        again = await openai.completions.create(model="segue-zoo", n=3, **body)
        assert [choice.text for choice in together.choices] == [choice.text for choice in again.choices]
        assert len({choice.text for choice in together.choices}) > 1
        for choice in together.choices:
            assert len(choice.logprobs.token_logprobs) == 12
            assert all(value is not None for value in choice.logprobs.token_logprobs)
        assert together.usage.completion_tokens == 36


async def test_a_frozen_prefill_worker_holds_no_answer_up(deployment: Deployment) -> None:
    async with client(deployment) as openai:
        before = await answers(openai)
        deployment.workers["prefill0"].send(signal.SIGSTOP)
        assert await answers(openai) == before
        deployment.workers["prefill0"].wake()
    deployment.emptied()
