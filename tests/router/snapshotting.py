"""A router whose workers keep snapshots, and requests of it that are taken and resumed, over HTTP."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from tests.router.reading import reading_from, reports_of, text_of
from tests.router.served import QUICK, Served, turn
from tests.support.fake_worker import FakeWorker

KEY = "the key of those who run this"
ADMIN = {"authorization": f"Bearer {KEY}"}
# Nobody here falls silent on purpose, and some tests keep the one event loop busy.
KEEPING = replace(QUICK, admin_key=KEY, heartbeat_timeout_s=15.0)
NAME = "the-request"
NAMED = {"x-request-id": NAME}
# Longer than any answer here.
MOST = 2000
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Half:
    """What a client got, from its first byte to its last."""

    text: str
    reports: list[object]
    reason: str
    usage: Mapping[str, Any] | None
    snapshot_id: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that can be begun any number of times."""

    path: str
    body: Mapping[str, object]
    stream: bool = True


async def until_taken(router: Served, count: int, name: str = NAME) -> None:
    """Waits until that many tokens of the request have come to the router."""
    async with asyncio.timeout(20):
        while True:
            running = router.shell.running
            if name in running and len(running.find(name).choices[0].taken) >= count:
                return
            await turn()


async def whole(router: Served, worker: FakeWorker, asked: Asked) -> Half:
    """The answer, undisturbed."""
    task = asyncio.create_task(_answer(router, asked.path, asked.body, {}, stream=asked.stream))
    await worker.until(lambda: bool(worker.live))
    worker.step(MOST)
    return await task


async def first_half(router: Served, worker: FakeWorker, asked: Asked, tokens: int, more: int) -> Half:
    """The answer until it is exported after so many tokens; `more` come from the worker while it is taken."""
    task = asyncio.create_task(_answer(router, asked.path, asked.body, NAMED, stream=asked.stream))
    await worker.until(lambda: bool(worker.live))
    while len(next(iter(worker.live.values())).output) < tokens:
        worker.step()
    await until_taken(router, tokens)
    worker.snapshots.deciding.clear()
    taking = asyncio.create_task(take(router))
    before = len(worker.snapshots.asked)
    await worker.until(lambda: len(worker.snapshots.asked) > before)
    worker.step(more)
    worker.snapshots.deciding.set()
    got = await taking
    assert got.status_code == 200, got.text
    half = await task
    assert half.snapshot_id == got.json()["id"]
    assert half.reason == "snapshot"
    return half


async def second_half(router: Served, worker: FakeWorker, snapshot_id: str, *, stream: bool) -> Half:
    """The rest."""
    path = f"/v1/snapshots/{snapshot_id}/resume"
    task = asyncio.create_task(_answer(router, path, {}, ADMIN, stream=stream))
    await worker.until(lambda: bool(worker.live))
    worker.step(MOST)
    return await task


async def take(router: Served, name: str = NAME, **body: object) -> httpx.Response:
    """Asks for a snapshot."""
    return await router.http.post(f"/v1/requests/{name}/snapshot", json=body, headers=ADMIN)


async def resume(router: Served, snapshot_id: str, **body: object) -> httpx.Response:
    """Asks for the rest."""
    return await router.http.post(f"/v1/snapshots/{snapshot_id}/resume", json=body, headers=ADMIN)


def code(got: httpx.Response) -> tuple[int, str]:
    """What an error says to a program."""
    return got.status_code, got.json()["error"]["code"]


async def _answer(
    router: Served, path: str, body: Mapping[str, object], headers: Mapping[str, str], *, stream: bool
) -> Half:
    if not stream:
        got = await router.http.post(path, json={**body, "stream": False}, headers=headers)
        assert got.status_code == 200, got.text
        (choice,) = got.json()["choices"]
        return Half(
            text_of(choice),
            reports_of(choice),
            choice["finish_reason"],
            got.json()["usage"],
            choice.get("snapshot_id"),
        )
    async with reading_from(router.http, path, body, headers) as read:
        await read.until_over()
    assert read.done, read.events[-1:]
    closing = [choice for event in read.events for choice in event["choices"] if choice["finish_reason"]]
    assert len(closing) == 1
    return Half(read.text, read.reports, closing[0]["finish_reason"], read.usage, closing[0].get("snapshot_id"))
