"""Five thousand bodies that are nearly right: each gets an answer below 500 in the right shape, and nothing is left."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.router.served import QUICK, answer, served
from tests.support.fake_worker import FakeWorker

COUNT = 5000
AT_ONCE = 16

CHAT: dict[str, Any] = {
    "model": "fake",
    "messages": [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "how many?"}]},
    ],
    "max_completion_tokens": 8,
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "stop": ["pears", "x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"5": 1.5},
    "seed": 3,
}
TEXT: dict[str, Any] = {
    "prompt": ["two", "three"],
    "max_tokens": 4,
    "min_tokens": 1,
    "top_k": 5,
    "min_p": 0.1,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.1,
    "frequency_penalty": -0.1,
    "logprobs": 1,
    "stop": "pears",
    "stop_token_ids": [9],
    "ignore_eos": False,
    "user": "u",
}
BASES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", TEXT),
    ("/v1/completions", {"prompt": [5, 6, 7], "stream": True}),
    ("/tokenize", {"prompt": "x"}),
    ("/tokenize", {"messages": CHAT["messages"]}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
]
ODD: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**63), 1e308, -0.0, 0.5, "", "x", "<|end|>", "\u0000", "🍎" * 50,
    [], [[]], [None], {}, {"": {}}, [1, "x"], {"role": "user"}, [[5]], ["a"] * 200, [2047, 2048], "9" * 30,
]  # fmt: skip


def mutated(rng: random.Random) -> tuple[str, bytes]:
    path, base = rng.choice(BASES)
    body = json.loads(json.dumps(base))
    for _ in range(rng.choice([1, 1, 2, 3])):
        body = mutate(rng, body)
    raw = json.dumps(body).encode()
    return path, (scrambled(rng, raw) if rng.random() < 0.1 else raw)


def mutate(rng: random.Random, value: Any) -> Any:  # noqa: ANN401  any JSON value
    """One change somewhere in the tree."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        match rng.randrange(5):
            case 0:
                return {name: part for name, part in value.items() if name != key}
            case 1:
                return value | {rng.choice([*CHAT, *TEXT, "tools", "echo", "nonsense"]): rng.choice(ODD)}
            case 2:
                return {key + "x" if name == key else name: part for name, part in value.items()}
            case _:
                return value | {key: mutate(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        place = rng.randrange(len(value))
        return [*value[:place], mutate(rng, value[place]), *value[place + rng.randrange(2) :]]
    if rng.random() < 0.4:
        return slightly_off(rng, value)
    return rng.choice([*ODD, [value], {"x": value}])


def slightly_off(rng: random.Random, value: Any) -> Any:  # noqa: ANN401  any JSON value
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + rng.choice([-1, 1])
    return value + "x" if isinstance(value, str) else value


def scrambled(rng: random.Random, raw: bytes) -> bytes:
    if rng.random() < 0.3:
        return rng.randbytes(rng.randrange(200))
    place = rng.randrange(len(raw))
    match rng.randrange(3):
        case 0:
            return raw[:place]
        case 1:
            return raw[:place] + rng.randbytes(1) + raw[place + 1 :]
        case _:
            return raw[:place] + rng.choice([b'"', b"{", b"]", b"\\u", b"NaN", b","]) + raw[place:]


@pytest.mark.slow
async def test_five_thousand_malformed_bodies_are_answered_below_500_and_leave_nothing() -> None:
    rng = random.Random(20)
    bodies = (mutated(rng) for _ in range(COUNT))
    statuses: Counter[int] = Counter()
    # Nothing rests meanwhile: on a busy machine a sign of life may come late.
    patient = replace(QUICK, heartbeat_timeout_s=10.0)
    async with FakeWorker(answer) as worker, served(worker, config=patient) as router:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(send_all(router.http, bodies, statuses))
        assert sum(statuses.values()) == COUNT
        # The mutations must reach past the first check, and be wrong often enough to test the checks.
        assert statuses[200] > COUNT / 20
        assert statuses[400] > COUNT / 2
        assert max(statuses) < 500
        await router.until_idle()
        await worker.until(lambda: not worker.live)
        assert (await router.http.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def send_all(http: httpx.AsyncClient, bodies: Iterator[tuple[str, bytes]], statuses: Counter[int]) -> None:
    for path, raw in bodies:
        got = await http.post(path, content=raw)
        statuses[got.status_code] += 1
        if got.status_code == 200:
            assert '"error"' not in got.text, (path, raw)
            assert "data: " not in got.text or got.text.endswith("data: [DONE]\n\n"), (path, raw)
        else:
            assert got.status_code < 500, (path, raw, got.text)
            assert set(got.json()["error"]) == {"message", "type", "param", "code"}, (path, raw)
