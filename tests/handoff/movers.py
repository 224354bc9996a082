"""A prefill worker and some decode workers, in this process: requests of one are moved to the next by hand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from decode_service.host import Host
from decode_service.retraction.config import RetractionConfig
from kv_transfer.hosting.config import TransferConfig
from kv_transfer.hosting.neighbours import Neighbours
from prefill_service.host import PrefillHost
from segue.batch.request import FinishReason
from segue.batch.submission import Moved
from segue.engine import Engine
from segue.ids import Handle
from segue.wire import GenerateSpec, Heartbeat, WorkerStatus
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import Attachment, RouterEnd
from tests.handoff.pair import QUICK, Answer, answer_of, engine_config, keeping, loading, whole

DRAIN_S = 10.0


@dataclass
class Decode:
    """One decode worker, a router's end at it, and the gate before each of its steps."""

    host: Host
    router: RouterEnd
    stream: Attachment
    gate: Gate
    engine: Engine
    """To look at, while its thread stands at the gate."""

    async def status(self) -> WorkerStatus:
        return await self.host.worker.status()

    async def told(self, handle: Handle, count: int) -> None:
        """Until so many tokens of a request have come."""
        await self.stream.until(lambda a: len(a.tokens.get(handle, ())) >= count)

    async def end(self, handle: Handle) -> Answer:
        await self.stream.until(lambda a: handle in a.ended)
        return answer_of(self.stream, handle)

    async def emptied(self) -> None:
        """Until nothing of its pools is held or promised."""
        async with asyncio.timeout(10):
            while not whole(await self.status()):
                pass


@dataclass
class Movers:
    """`source` drains, `target` takes over."""

    prefill: PrefillHost
    decodes: Sequence[Decode]

    @property
    def source(self) -> Decode:
        return self.decodes[0]

    @property
    def target(self) -> Decode:
        return self.decodes[1]

    async def begin(self, spec: GenerateSpec) -> Handle:
        """A request through the prefill worker, accepted by the source."""
        return await self.source.router.generate(replace(spec, prefill_address=self.prefill.address))

    async def drain(self, source: int = 0) -> "asyncio.Task[None]":
        """The source begins to drain, and has heard that there is another worker."""
        draining = asyncio.create_task(self.decodes[source].host.worker.drain(DRAIN_S))
        await self.decodes[source].stream.send(Heartbeat(1, elsewhere=True))
        return draining

    def moved(self, spec: GenerateSpec, handle: Handle, *, attempt: int = 2, source: int = 0) -> GenerateSpec:
        """What the target is asked for when the source has let a request of the attempt of `spec` go."""
        told = answer_of(self.decodes[source].stream, handle)
        assert told.reason is FinishReason.MOVED
        emitted, left = (*spec.emitted, *told.tokens), Moved(self.decodes[source].host.address, handle, spec.attempt)
        return replace(spec, attempt=attempt, emitted=emitted, moved=left)

    async def switch(self, spec: GenerateSpec, handle: Handle) -> Answer:
        """All of a request that has left the source, or will, or ends there."""
        first = await self.source.end(handle)
        if first.reason is not FinishReason.MOVED:
            return first
        rest = await self.target.end(await self.target.router.generate(self.moved(spec, handle)))
        return replace(rest, tokens=first.tokens + rest.tokens, logprobs=first.logprobs + rest.logprobs)

    async def switched(self, asked: Sequence[GenerateSpec], after: int = 3) -> list[Answer]:
        """All requests, whose worker drains once each has so many tokens."""
        handles = [await self.begin(one) for one in asked]
        for handle in handles:
            await self.source.told(handle, after)
        self.source.gate.close()
        draining = await self.drain()
        self.source.gate.open()
        answers = [await self.switch(one, handle) for one, handle in zip(asked, handles, strict=True)]
        await draining
        return answers


@asynccontextmanager
async def moving(
    folder: Path,
    *,
    decodes: int = 2,
    transports: str = "local",
    keep_s: float = 30.0,
    silence_s: float = 20.0,
    source: dict[str, object] | None = None,
    target: dict[str, object] | None = None,
    retraction: RetractionConfig | None = None,
    **changes: object,
) -> AsyncIterator[Movers]:
    """Connected workers with digests on, both gates open. `changes` are of all engines, the others of one."""
    transfer = TransferConfig(
        transports=transports, verify=True, heartbeat_s=0.05, silence_s=silence_s, extend_tokens=0, keep_s=keep_s
    )
    neighbours = Neighbours()
    prefill = PrefillHost(QUICK, transfer, neighbours)
    hosts = [Host(QUICK, transfer, neighbours) for _ in range(decodes)]
    gates = [Gate() for _ in hosts]
    engines: list[Engine] = []
    await prefill.start(loading(engine_config(folder, "prefill", **changes)))
    for host, gate, own in zip(hosts, gates, (source, target, *[None] * (decodes - 2)), strict=True):
        config = engine_config(folder, "decode", **{**changes, **(own or {})})
        await host.start(keeping(loading(config, gate, retraction), engines))
    try:
        async with AsyncExitStack() as stack:
            made = []
            for host, gate, engine in zip(hosts, gates, engines, strict=True):
                router = await stack.enter_async_context(RouterEnd(host.address))
                stream = await stack.enter_async_context(router.attach())
                made.append(Decode(host, router, stream, gate, engine))
            yield Movers(prefill, made)
    finally:
        for gate in gates:
            gate.open()
        await asyncio.gather(prefill.worker.drain(0.1), *(host.worker.drain(0.1) for host in hosts))
        await asyncio.gather(prefill.stop(), *(host.stop() for host in hosts))
