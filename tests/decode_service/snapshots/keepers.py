"""Real workers that keep snapshots, each with its engine thread and port in this process, and a router at them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from decode_service.host import Host
from decode_service.retraction.config import RetractionConfig
from segue.engine import Engine
from segue.ids import Handle, RouterId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.locks import FolderLock
from segue.state.snapshot.names import FOLDER_LOCK, is_id, new_id
from segue.wire import GenerateSpec, SnapshotTaken, TakeSnapshot, WorkerStatus
from tests.decode_service.gates import Gate
from tests.decode_service.router_end import Attachment, RouterEnd
from tests.handoff.pair import QUICK, Answer, answer_of, engine_config, loading, whole
from tests.handoff.pair import keeping as keeping_engine

BOUNDED: dict[str, object] = {"state_bytes": 8 << 20, "max_len": 512, "chunk_tokens": 32}


@dataclass
class Keeper:
    """A worker in one process with the test. `engine` is to look at, while its thread stands at the gate."""

    host: Host
    router: RouterEnd
    stream: Attachment
    gate: Gate
    engine: Engine

    async def begin(self, spec: GenerateSpec) -> Handle:
        return await self.router.generate(spec)

    async def told(self, handle: Handle, count: int) -> None:
        """Until so many tokens of it have been told."""
        await self.stream.until(lambda a: len(a.tokens.get(handle, ())) >= count)

    async def end(self, handle: Handle) -> Answer:
        """What was told of it, once it has ended."""
        await self.stream.until(lambda a: handle in a.ended)
        return answer_of(self.stream, handle)

    async def take(self, handle: Handle, *, copy: bool = False, attempt: int = 1) -> SnapshotTaken:
        return await self.router.take_snapshot(asking_for(handle, copy=copy, attempt=attempt))

    async def status(self) -> WorkerStatus:
        return await self.host.worker.status()

    async def emptied(self) -> None:
        """Until nothing is held."""
        async with asyncio.timeout(10):
            while not whole(await self.status()):
                pass


@asynccontextmanager
async def keeper(
    model: Path,
    folder: Path | None,
    changes: Mapping[str, object] = MappingProxyType({}),
    *,
    snapshots: Mapping[str, object] = MappingProxyType({}),
    retraction: RetractionConfig | None = None,
) -> AsyncIterator[Keeper]:
    """A worker in role both with its own view of a snapshot folder, or none; ended when the block ends.

    `changes` are of its engine.
    """
    config = SnapshotConfig(folder="" if folder is None else str(folder), **snapshots)  # type: ignore[arg-type]
    host, gate = Host(QUICK, snapshots=config), Gate()
    engines: list[Engine] = []
    kept = retraction or RetractionConfig(host_bytes=4 << 20)
    ours = loading(engine_config(model, "both", **{**BOUNDED, **changes}), gate, kept)
    await host.start(keeping_engine(ours, engines))
    try:
        async with RouterEnd(host.address) as router, router.attach() as stream:
            yield Keeper(host, router, stream, gate, engines[0])
    finally:
        gate.open()
        await host.worker.drain(0.1)
        await host.stop()


def asking_for(handle: Handle, *, copy: bool = False, attempt: int = 1) -> TakeSnapshot:
    """What a router asks that says nothing of the request."""
    return TakeSnapshot(
        router_id=RouterId("r"),
        handle=handle,
        attempt=attempt,
        copy=copy,
        served=0,
        about=b"{}",
        snapshot_id=new_id(),
    )


def going_on(spec: GenerateSpec, snapshot_id: str, emitted: list[int], attempt: int = 2) -> GenerateSpec:
    """The same request behind `emitted`, from a snapshot."""
    return replace(spec, attempt=attempt, snapshot_id=snapshot_id, emitted=tuple(emitted))


def snapshots_in(folder: Path) -> list[str]:
    """Whatever lies there that is called like a snapshot, complete or not."""
    return sorted(entry.name for entry in folder.iterdir() if is_id(entry.name))


@contextmanager
def stalled(folder: Path) -> Iterator[threading.Event]:
    """Meanwhile, or until the event is set, nobody else gets anything done in a snapshot folder."""
    taken, over = threading.Event(), threading.Event()

    def hold() -> None:
        with FolderLock(folder / FOLDER_LOCK).held():
            taken.set()
            over.wait(25)

    holding = threading.Thread(target=hold)
    holding.start()
    assert taken.wait(10)
    try:
        yield over
    finally:
        over.set()
        holding.join()
