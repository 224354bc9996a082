"""Processes are killed, frozen and left alone under running streams: nothing hangs, and what was begun is finished."""

import itertools
import signal
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import APIConnectionError, OpenAI, Stream
from openai.types.chat import ChatCompletionChunk

from tests.cluster.command import segue
from tests.cluster.deployment import Deployment, deployed

QUESTION = "A farmer has 12 cows and buys 5 more each month. How many cows has he after 4 months?"


def client(deployment: Deployment) -> OpenAI:
    return OpenAI(base_url=f"{deployment.url}/v1", api_key="none", timeout=60, max_retries=0)


def asked(openai: OpenAI, max_tokens: int = 60) -> Stream[ChatCompletionChunk]:
    """A greedy answer of exactly `max_tokens` tokens."""
    return openai.chat.completions.create(
        model="segue-zoo",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        logprobs=True,
        max_tokens=max_tokens,
        extra_body={"ignore_eos": True},
        stream=True,
    )


def tokens(stream: Iterator[ChatCompletionChunk]) -> Iterator[str]:
    """Every token of the output with its logprob, as one text each."""
    for chunk in stream:
        for choice in chunk.choices:
            logprobs = choice.logprobs.content if choice.logprobs else None
            yield from (f"{entry.token} {entry.bytes}" for entry in logprobs or ())


def answer(deployment: Deployment) -> list[str]:
    with client(deployment) as openai:
        return list(tokens(asked(openai)))


def completed(deployment: Deployment) -> str:
    """What follows a prompt that takes several steps to compute."""
    prompt = [3 + i * 37 % 2000 for i in range(2000)]
    # What is cached would take one step.
    uncached = {"cache_salt": uuid.uuid4().hex}
    with client(deployment) as openai:
        made = openai.completions.create(
            model="segue-zoo", prompt=prompt, temperature=0, max_tokens=16, extra_body=uncached
        )
    return made.choices[0].text


def readiness(deployment: Deployment) -> int | None:
    """What the router says of itself, None when it is not there."""
    try:
        return httpx.get(f"{deployment.url}/readiness", timeout=5).status_code
    except httpx.TransportError:
        return None


def until_readiness(deployment: Deployment, wanted: int) -> None:
    """Waits until the router says that it is ready (200), or that it is not (503)."""
    end = time.monotonic() + 30
    while (status := readiness(deployment)) != wanted:
        assert time.monotonic() < end, f"the router's readiness stayed {status}"


def until_promised(deployment: Deployment) -> None:
    """Waits until the decode worker has promised room for a prompt, whose state is under way then."""
    end = time.monotonic() + 30
    while not deployment.status("decode").promised:
        assert time.monotonic() < end, "the prompt's state was never promised room"


def test_a_question_is_answered_over_a_stream_by_way_of_both_halves(deployment: Deployment) -> None:
    until_readiness(deployment, 200)
    assert deployment.roles == ["prefill", "decode"]
    before = deployment.status("decode").transfers.count
    with client(deployment) as openai:
        chunks = list(
            openai.chat.completions.create(
                model="segue-zoo",
                messages=[{"role": "user", "content": QUESTION}],
                temperature=0,
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    assert chunks[0].choices[0].delta.role == "assistant"
    usage = chunks[-1].usage
    assert usage is not None
    assert 0 < usage.completion_tokens <= 20
    assert deployment.status("decode").transfers.count == before + 1
    deployment.emptied()


@pytest.mark.parametrize(
    # A prefill worker that dies while it has work is the next test's.
    "killed",
    [pytest.param(("prefill",), marks=pytest.mark.slow), ("decode",), ("prefill", "decode")],
)
def test_a_stream_survives_the_death_of_its_workers(deployment: Deployment, killed: tuple[str, ...]) -> None:
    until_readiness(deployment, 200)
    undisturbed = answer(deployment)
    assert len(undisturbed) == 60
    addresses = [deployment.ready(name)[-1][0] for name in killed]
    with client(deployment) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        starts = [deployment.kill(name) for name in killed]
        assert begun + list(stream) == undisturbed
    for name, before in zip(killed, starts, strict=True):
        deployment.restarted(name, before)
    assert [deployment.ready(name)[-1][0] for name in killed] == addresses
    until_readiness(deployment, 200)
    assert answer(deployment) == undisturbed
    deployment.emptied()


def test_a_prompt_under_way_survives_the_death_of_its_prefill_worker(deployment: Deployment) -> None:
    until_readiness(deployment, 200)
    undisturbed = completed(deployment)
    with ThreadPoolExecutor(1) as beside:
        asking = beside.submit(completed, deployment)
        until_promised(deployment)
        starts = deployment.kill("prefill")
        assert asking.result(60) == undisturbed
    deployment.restarted("prefill", starts)
    deployment.emptied()


def test_the_answer_is_that_of_one_worker_in_role_both_which_survives_as_well(deployment: Deployment) -> None:
    until_readiness(deployment, 200)
    apart = answer(deployment)
    with deployed("both.replicas=1") as together, client(together) as openai:
        assert together.roles == ["both"]
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        starts = together.kill("both")
        assert begun + list(stream) == apart
        together.restarted("both", starts)
        together.emptied()


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_a_frozen_worker_is_noticed_and_comes_back(deployment: Deployment, name: str) -> None:
    until_readiness(deployment, 200)
    undisturbed = answer(deployment)
    with client(deployment) as openai:
        stream = tokens(asked(openai))
        begun = list(itertools.islice(stream, 10))
        deployment.kill(name, signal.SIGSTOP)
        try:
            until_readiness(deployment, 503)
        finally:
            deployment.kill(name, signal.SIGCONT)
        assert begun + list(stream) == undisturbed
    until_readiness(deployment, 200)
    deployment.emptied()


def test_a_killed_router_comes_back_where_it_was(deployment: Deployment) -> None:
    until_readiness(deployment, 200)
    url = deployment.url
    with client(deployment) as openai:
        stream = tokens(asked(openai, max_tokens=1000))
        next(stream)
        starts = deployment.kill("router")
        with pytest.raises(APIConnectionError):
            list(stream)
    deployment.restarted("router", starts)
    assert deployment.url == url
    until_readiness(deployment, 200)
    assert len(answer(deployment)) == 60
    deployment.emptied()


def test_a_client_that_leaves_gives_everything_back(deployment: Deployment) -> None:
    until_readiness(deployment, 200)
    for _ in range(3):
        with client(deployment) as openai:
            stream = asked(openai, max_tokens=1500)
            list(itertools.islice(tokens(stream), 3))
            stream.close()
    deployment.emptied()


def test_a_chat_in_a_pipe_is_answered(deployment: Deployment) -> None:
    until_readiness(deployment, 200)
    ended = segue("chat", "--url", deployment.url, "--max-tokens", "8", stdin="What is 3 plus 4?\n")
    assert ended.returncode == 0
    assert ended.stderr == ""
    assert ended.stdout.endswith("\n")
    deployment.emptied()
