"""Workers of two builds behind one router: an output is ended by workers of the build that began it, or not at all."""

from collections.abc import Iterator

import httpx
import pytest
from openai import APIError, AsyncOpenAI, AsyncStream
from openai.types import Completion

from tests.handoff.processes import Process, flags

pytestmark = pytest.mark.cluster

PROMPT = "Tom has 12 apples and buys 5 more. How many apples does he have now?"
TOKENS = 300


class Deployment:
    """Two workers of one build, one of another, and a router."""

    def __init__(self) -> None:
        started = [Process(["worker", *flags(f"engine.deterministic={each}")]) for each in ("true", "true", "false")]
        self.workers = {process.wait_ready(): process for process in started}
        named = [part for address in self.workers for part in ("--worker", address)]
        grace = flags("router.reattach_grace_s=0.5", "router.continuation_grace_s=2")
        self.router = Process(["router", "--port", "0", *grace, *named])
        self.url = self.router.wait_ready()

    def close(self) -> None:
        for process in (self.router, *self.workers.values()):
            process.close()


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    made = Deployment()
    try:
        yield made
    finally:
        made.close()


async def fingerprints(deployment: Deployment) -> dict[str, str]:
    """What the router knows of every worker, by address."""
    async with httpx.AsyncClient(base_url=deployment.url) as http:
        while True:
            listed = (await http.get("/workers")).json()["workers"]
            if all(worker["state"] == "ready" for worker in listed):
                return {worker["address"]: worker["fingerprint"] for worker in listed}


async def begun(openai: AsyncOpenAI) -> AsyncStream[Completion]:
    return await openai.completions.create(
        model="segue-zoo",
        prompt=PROMPT,
        temperature=0,
        max_tokens=TOKENS,
        stream=True,
        logprobs=0,
        extra_body={"ignore_eos": True},
    )


async def read(stream: AsyncStream[Completion], count: int = TOKENS) -> int:
    """Reads until so many more tokens have come, or the end."""
    seen = 0
    async for event in stream:
        seen += sum(len(choice.logprobs.tokens or ()) for choice in event.choices if choice.logprobs)
        if seen >= count:
            break
    return seen


async def test_an_output_stays_with_the_build_that_began_it(deployment: Deployment) -> None:
    groups: dict[str, list[str]] = {}
    for address, fingerprint in (await fingerprints(deployment)).items():
        groups.setdefault(fingerprint, []).append(address)
    (other,), (first, second) = sorted(groups.values(), key=len)
    async with AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=60) as openai:
        # The least loaded worker gets the next, so each has one.
        streams = [await begun(openai) for _ in range(3)]
        read_before = [await read(stream, 5) for stream in streams]
        assert all(worker.status().running for worker in deployment.workers.values())
        deployment.workers[first].kill()
        assert [count + await read(stream) for stream, count in zip(streams, read_before, strict=True)] == [TOKENS] * 3
        assert deployment.workers[other].status().generated_tokens == TOKENS

        streams = [await begun(openai) for _ in range(2)]
        read_before = [await read(stream, 5) for stream in streams]
        assert deployment.workers[second].status().running == 1
        deployment.workers[second].kill()
        errors: list[APIError] = []
        for stream, count in zip(streams, read_before, strict=True):
            try:
                assert count + await read(stream) == TOKENS
            except APIError as error:
                errors.append(error)
        assert [error.code for error in errors] == ["worker_unavailable"]
        assert "fingerprint" in errors[0].message
        assert deployment.workers[other].status().generated_tokens == 2 * TOKENS
