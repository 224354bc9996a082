"""A prefill and a decode worker over one small checkpoint, each with its engine thread and port, in this process."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from decode_service.host import Host
from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.parts import retraction_parts
from decode_service.worker import Worker
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from kv_transfer.hosting.loading import Identity, Loaded, fingerprint
from kv_transfer.hosting.neighbours import Neighbours
from prefill_service.host import PrefillHost
from prefill_service.worker import PrefillWorker
from segue.batch.request import FinishReason
from segue.build import assemble, open_model
from segue.config import EngineConfig
from segue.engine import Engine
from segue.ids import Handle
from segue.runner.context import Model, StepContext
from segue.state.snapshot.config import SnapshotConfig
from segue.weights.folder import ModelFolder
from segue.wire import GenerateSpec, PoolStatus, WorkerStatus
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import Attachment, RouterEnd

QUICK = WorkerConfig(heartbeat_s=0.05, silence_s=900.0, session_grace_s=5.0, drain_s=5.0)

_AT_ONCE = 25


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


class GatedModel:
    """A model whose every step waits at a gate."""

    def __init__(self, model: Model, gate: Gate) -> None:
        self._model = model
        self._gate = gate
        self.state = model.state
        self.device = model.device
        self.vocab_size = model.vocab_size
        self.max_position = model.max_position

    def forward(self, step: StepContext) -> torch.Tensor:
        self._gate()
        return self._model.forward(step)


def loading(
    config: EngineConfig, gate: Gate | None = None, retraction: RetractionConfig | None = None
) -> Callable[[], Loaded]:
    """Loads an engine, on whatever thread it is called. Without `retraction` nobody is taken off the device."""

    def build() -> Loaded:
        folder = ModelFolder.open(config.model)
        model, crew = open_model(config, folder)
        built = assemble(
            config,
            model if gate is None else GatedModel(model, gate),
            name="small",
            generation=folder.generation,
            retraction=None if retraction is None else retraction_parts(retraction, config.page_tokens),
            crew=crew,
        )
        facts = built.engine.facts
        ours = fingerprint(folder, facts)
        return Loaded(built.engine, Identity(facts, ours.hex, tuple(ours.fields().items())), built)

    return build


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
    prefill_gate: Gate
    decode_gate: Gate
    prefill_engine: Engine
    """To look at, while its thread stands at the gate."""
    decode_engine: Engine

    async def begin(self, spec: GenerateSpec) -> Handle:
        """One request through the prefill worker, accepted."""
        return await self.router.generate(replace(spec, prefill_address=self.prefill.address))

    async def end(self, handle: Handle) -> Answer:
        """Its answer, once it has ended."""
        await self.stream.until(lambda a: handle in a.ended)
        return answer_of(self.stream, handle)

    async def until(self, worker: Worker | PrefillWorker, seen: Callable[[WorkerStatus], bool]) -> None:
        """Until a worker's status shows it."""
        async with asyncio.timeout(10):
            while not seen(await worker.status()):
                pass

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
    folder: Path,
    *,
    transports: str = "local",
    neighbours: Neighbours | None = None,
    lease_s: float = 30.0,
    heartbeat_s: float = 0.05,
    silence_s: float = 20.0,
    extend_tokens: int = 0,
    prefill: dict[str, object] | None = None,
    decode: dict[str, object] | None = None,
    retraction: RetractionConfig | None = None,
    snapshots: SnapshotConfig | None = None,
    **changes: object,
) -> AsyncIterator[Pair]:
    """A connected pair with digests on, both gates open.

    `changes` are of both engines, `prefill` and `decode` of one. `snapshots` are the decode worker's.
    """
    transfer = TransferConfig(
        transports=transports,
        verify=True,
        lease_s=lease_s,
        heartbeat_s=heartbeat_s,
        silence_s=silence_s,
        extend_tokens=extend_tokens,
    )
    neighbours = neighbours or Neighbours()
    sender = PrefillHost(QUICK, transfer, neighbours)
    receiver = Host(QUICK, transfer, neighbours, snapshots=snapshots)
    gates = Gate(), Gate()
    engines: list[Engine] = []
    theirs = loading(engine_config(folder, "prefill", **{**changes, **(prefill or {})}), gates[0])
    await sender.start(keeping(theirs, engines))
    ours = loading(engine_config(folder, "decode", **{**changes, **(decode or {})}), gates[1], retraction)
    await receiver.start(keeping(ours, engines))
    try:
        async with RouterEnd(receiver.address) as router, router.attach() as stream:
            yield Pair(sender, receiver, router, stream, *gates, *engines)
    finally:
        for gate in gates:
            gate.open()
        await asyncio.gather(sender.worker.drain(0.1), receiver.worker.drain(0.1))
        await asyncio.gather(sender.stop(), receiver.stop())


def keeping(build: Callable[[], Loaded], engines: list[Engine]) -> Callable[[], Loaded]:
    """Builds the same, and keeps hold of the engine."""

    def build_and_keep() -> Loaded:
        loaded = build()
        engines.append(loaded.engine)
        return loaded

    return build_and_keep


async def alone(folder: Path, specs: Sequence[GenerateSpec], **changes: object) -> list[Answer]:
    """The same requests on one worker that does everything. Several tests ask for the same: it is computed once."""
    key = folder, tuple(specs), tuple(sorted(changes.items()))
    if key not in _ALONE:
        _ALONE[key] = await _answered_alone(folder, specs, **changes)
    return _ALONE[key]


_ALONE: dict[object, list[Answer]] = {}


async def _answered_alone(folder: Path, specs: Sequence[GenerateSpec], **changes: object) -> list[Answer]:
    host = Host(QUICK)
    await host.start(loading(engine_config(folder, "both", **changes)))
    try:
        async with RouterEnd(host.address) as router, router.attach() as stream:
            found: list[Answer] = []
            for start in range(0, len(specs), _AT_ONCE):
                found += await answers(router, stream, specs[start : start + _AT_ONCE])
                stream.messages.clear()
            return found
    finally:
        await host.stop()


async def answers(router: RouterEnd, stream: Attachment, specs: Sequence[GenerateSpec]) -> list[Answer]:
    handles: list[Handle] = await asyncio.gather(*(router.generate(one) for one in specs))
    await stream.until(lambda a: all(handle in a.ended for handle in handles))
    return [answer_of(stream, handle) for handle in handles]


def whole(status: WorkerStatus) -> bool:
    """Whether nothing runs or waits, and no pool holds or promises anything but to its cache."""
    return not status.running + status.waiting + status.promised and all(_free(pool) for pool in status.pools)


def _free(pool: PoolStatus) -> bool:
    return pool.free + pool.cached + pool.sink == pool.capacity


def answer_of(stream: Attachment, handle: Handle) -> Answer:
    """What a stream has told of one request."""
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
