"""A prefill and a decode worker over one small checkpoint, each with its engine thread and port, in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from decode_service.host import Host
from hosting.config import TransferConfig, WorkerConfig
from hosting.loading import Loaded, load
from hosting.neighbours import Neighbours
from prefill_service.host import PrefillHost
from segue.batch.request import FinishReason
from segue.config import EngineConfig
from segue.ids import Handle
from segue.wire import GenerateSpec, PoolStatus, WorkerStatus
from tests.decode_service.router_end import Attachment, RouterEnd

QUICK = WorkerConfig(heartbeat_s=0.05, silence_s=20.0, session_grace_s=5.0, drain_s=5.0)


def engine_config(folder: Path, role: str, **changes: object) -> EngineConfig:
    """A small deterministic engine on one thread."""
    config = EngineConfig(
        model=folder,
        name="small",
        role=role,
        deterministic=True,
        threads=1,
        page_tokens=8,
        state_bytes=16 << 20,
        max_running=8,
        max_waiting=256,
        max_len=512,
        step_tokens=64,
        chunk_tokens=32,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def loading(config: EngineConfig) -> Callable[[], Loaded]:
    return lambda: load(config, lambda _: None, lambda _: None)


@dataclass
class Answer:
    """One output: absolute index, token and logprob of each entry, and its end."""

    tokens: list[int]
    logprobs: list[float]
    reason: FinishReason
    usage: tuple[int, int]
    error: Exception | None


@dataclass
class Pair:
    """The two workers, and a router's end at the decode worker."""

    prefill: PrefillHost
    decode: Host
    router: RouterEnd
    stream: Attachment

    async def ask(self, specs: Sequence[GenerateSpec]) -> list[Answer]:
        """All requests at once, through the prefill worker."""
        return await answers(
            self.router, self.stream, [replace(one, prefill_address=self.prefill.address) for one in specs]
        )

    async def emptied(self) -> None:
        """Until both workers' pools are whole again."""
        async with asyncio.timeout(10):
            while True:
                statuses = [await self.decode.worker.status(), await self.prefill.worker.status()]
                if all(whole(status) for status in statuses):
                    return


@asynccontextmanager
async def paired(
    folder: Path, *, transports: str = "local", prefill: dict[str, object] | None = None, **changes: object
) -> AsyncIterator[Pair]:
    """A connected pair with digests on. `changes` are of both engines, `prefill` of one."""
    transfer = TransferConfig(transports=transports, verify=True)
    neighbours = Neighbours()
    sender, receiver = PrefillHost(QUICK, transfer, neighbours), Host(QUICK, transfer, neighbours)
    await sender.start(loading(engine_config(folder, "prefill", **{**changes, **(prefill or {})})))
    await receiver.start(loading(engine_config(folder, "decode", **changes)))
    try:
        async with RouterEnd(receiver.address) as router, router.attach() as stream:
            yield Pair(sender, receiver, router, stream)
    finally:
        await asyncio.gather(sender.worker.drain(0.1), receiver.worker.drain(0.1))
        await asyncio.gather(sender.stop(), receiver.stop())


async def alone(folder: Path, specs: Sequence[GenerateSpec], **changes: object) -> list[Answer]:
    """The same requests on one worker that does everything."""
    host = Host(QUICK)
    await host.start(loading(engine_config(folder, "both", **changes)))
    try:
        async with RouterEnd(host.address) as router, router.attach() as stream:
            return await answers(router, stream, specs)
    finally:
        await host.stop()


async def answers(router: RouterEnd, stream: Attachment, specs: Sequence[GenerateSpec]) -> list[Answer]:
    handles: list[Handle] = await asyncio.gather(*(router.generate(one) for one in specs))
    await stream.until(lambda a: all(handle in a.ended for handle in handles))
    return [_answer(stream, handle) for handle in handles]


def whole(status: WorkerStatus) -> bool:
    """Whether nothing runs or waits, and no pool holds or promises anything."""
    return not status.running + status.waiting + status.promised and all(_free(pool) for pool in status.pools)


def _free(pool: PoolStatus) -> bool:
    return pool.free + pool.sink == pool.capacity


def _answer(stream: Attachment, handle: Handle) -> Answer:
    entries = stream.tokens.get(handle, [])
    ended = stream.ended[handle]
    logprobs = {
        (news_handle, index): value
        for news in stream.messages
        if news.logprobs
        for news_handle, index, value in zip(news.handles, news.indices, news.logprobs, strict=True)
    }
    return Answer(
        [token for _, _, token in entries],
        [logprobs.get((handle, index), 0.0) for _, index, _ in entries],
        ended.reason,
        (ended.usage.prompt_tokens, ended.usage.completion_tokens),
        ended.error,
    )
