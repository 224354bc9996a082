"""Clients that take nothing while their worker is replaced by another process: what happened there is read late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import orjson
from starlette.types import Message

from router.generate import completion_endpoint
from segue.batch.request import FinishReason
from segue.errors import WorkerUnavailable
from tests.router.reading import Reading, reading_from
from tests.router.served import Served, answer, served, turn
from tests.router.snapshotting import COMPLETIONS, KEEPING, NAMED, code, take, until_taken
from tests.support.fake_folder import FakeFolder
from tests.support.fake_worker import FakeWorker

STALLED = "stalled"
CONFIG = replace(KEEPING, continuation_grace_s=60.0, breaker_faults=1, breaker_cooldown_s=60.0)


class Client:
    """Takes the first bytes of a stream, and the rest when it is told to."""

    def __init__(self, router: Served) -> None:
        self.got = b""
        self.takes = asyncio.Event()
        self._asked = [
            {"type": "http.request", "body": orjson.dumps({"prompt": "x", "max_tokens": 64, "stream": True})}
        ]
        self._endpoint = completion_endpoint(router.shell)

    async def ask(self) -> None:
        await self._endpoint({"type": "http", "headers": [], "request_id": STALLED}, self._receive, self._send)

    async def _receive(self) -> Message:
        if not self._asked:
            await asyncio.get_running_loop().create_future()
        return self._asked.pop()

    async def _send(self, message: Message) -> None:
        self.got += message.get("body", b"")
        if message["type"] == "http.response.body":
            await self.takes.wait()


@asynccontextmanager
async def stalled() -> AsyncIterator[tuple[FakeWorker, Served, Client, AsyncExitStack]]:
    """A worker with one choice, two tokens of which its client has; it takes no more."""
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(FakeWorker(answer, paused=True, folder=FakeFolder()))
        router = await stack.enter_async_context(served(worker, config=CONFIG))
        client = Client(router)
        asking = asyncio.create_task(client.ask())
        await worker.until(lambda: bool(worker.live))
        worker.step(2)
        await until_taken(router, 1, STALLED)
        yield worker, router, client, stack
        client.takes.set()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def followed(worker: FakeWorker, router: Served, stack: AsyncExitStack, worker_id: str = "new") -> FakeWorker:
    """Another process at the worker's address, with which the router has a session."""
    await worker.stop()
    new = FakeWorker(answer, worker_id=worker_id, paused=True, folder=worker.snapshots.folder)
    await new.start(worker.port)
    stack.push_async_callback(new.stop)
    await new.until(lambda: bool(new.attaches))
    await router.until_ready()
    return new


async def test_what_left_the_process_before_keeps_nothing_from_its_successor() -> None:
    async with stalled() as (worker, router, client, stack):
        worker.ending = True
        await worker.until(lambda: bool(worker.snapshots.folder.manifests) and not worker.live)
        new = await followed(worker, router, stack)
        client.takes.set()
        await new.until(lambda: bool(new.live))
        assert new.specs[0].snapshot_id
        assert router.shell.fleet.ready


async def test_the_fault_of_the_process_before_is_not_its_successors() -> None:
    async with stalled() as (worker, router, client, stack):
        worker.end(next(iter(worker.live)), FinishReason.ERROR, WorkerUnavailable("its drain is over"))
        (link,) = router.shell.fleet.links
        while link.load:
            await turn()
        new = await followed(worker, router, stack)
        client.takes.set()
        await new.until(lambda: bool(new.live))


async def test_nobody_parks_another_choice_in_its_place() -> None:
    """Each process counts its choices from one: what the last one called this, the next one calls another."""
    async with (
        stalled() as (worker, router, _, stack),
        begun_anew(worker, router, stack) as (new, stream),
    ):
        new.ending = True
        await new.until(lambda: not new.live)
        third = await followed(new, router, stack, "third")
        await third.until(lambda: bool(third.live))
        assert third.specs[0].snapshot_id
        third.step(64)
        await stream.until_over()
        assert (stream.reason, stream.done) == ("stop", True)
        assert len(new.snapshots.asked) == 1


async def test_nobody_exports_another_choice_in_its_place() -> None:
    async with (
        stalled() as (worker, router, _, stack),
        begun_anew(worker, router, stack) as (new, stream),
    ):
        assert code(await take(router, STALLED)) == (409, "snapshot_not_ready")
        assert new.live
        new.step(64)
        await stream.until_over()
        assert stream.done


@asynccontextmanager
async def begun_anew(
    worker: FakeWorker, router: Served, stack: AsyncExitStack
) -> AsyncIterator[tuple[FakeWorker, Reading]]:
    """The process that follows one that was lost, with a choice of another client."""
    before = next(iter(worker.live.values()))
    new = await followed(worker, router, stack)
    async with reading_from(router.http, COMPLETIONS, {"prompt": "x", "max_tokens": 64}, NAMED) as stream:
        await new.until(lambda: bool(new.live))
        new.step(3)
        await until_taken(router, 3)
        after = next(iter(new.live.values()))
        assert (after.handle, after.spec.attempt) == (before.handle, before.spec.attempt)
        yield new, stream
