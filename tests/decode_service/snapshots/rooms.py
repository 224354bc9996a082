"""Engines that take snapshots of their requests and go on from those of others, stepped by hand."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.parts import retraction_parts
from decode_service.snapshots.commands import SnapshotDone, WriteSnapshot
from decode_service.snapshots.identity import snapshot_identity
from decode_service.snapshots.images import StateImage, StateImages
from decode_service.snapshots.memory import ImageMemory
from decode_service.snapshots.restoring import Restored, Restoring
from decode_service.snapshots.taking import SnapshotTaking
from decode_service.snapshots.writing import SnapshotWriting, Written
from kv_transfer.hosting.loading import Loaded, load
from segue.batch.news import Ended
from segue.engine import Engine
from segue.ids import Handle
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.manifest import ManifestRequest, ManifestState
from segue.state.snapshot.names import new_id
from segue.tokens import EmittedToken
from segue.wire import GenerateSpec
from tests.handoff.pair import engine_config


class CountedWriting(SnapshotWriting):
    """Knows how many it was asked for since somebody looked."""

    begun = 0

    def submit(
        self, image: StateImage, request: ManifestRequest, state: ManifestState, snapshot_id: str | None = None
    ) -> "Future[Written]":
        self.begun += 1
        return super().submit(image, request, state, snapshot_id)

    def take_begun(self) -> int:
        begun, self.begun = self.begun, 0
        return begun


@dataclass
class Room:
    """An engine and its snapshot folder. `tokens` is what it put out, by handle."""

    loaded: Loaded
    taking: SnapshotTaking
    restoring: Restoring
    done: SimpleQueue[SnapshotDone]
    writing: CountedWriting
    memory: ImageMemory
    tokens: dict[Handle, list[EmittedToken]] = field(default_factory=dict)
    ended: list[Ended] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.loaded.engine

    def submit(self, spec: GenerateSpec, handle: int = 1) -> Handle:
        self.engine.submit(spec, Handle(handle))
        return Handle(handle)

    def step(self) -> bool:
        """Whether there was anything to compute."""
        self.taking.turn()
        record = self.engine.launch()
        if record is not None:
            news = self.engine.commit(record)
            for handle, token in zip(news.handles, news.tokens, strict=True):
                self.tokens.setdefault(handle, []).append(token)
            self.ended += news.ended
        self.ended += self.engine.take_ended()
        self.engine.check()
        return record is not None

    def run(self) -> None:
        while self.step():
            pass

    def until(self, handle: Handle, count: int) -> None:
        """Steps until that many tokens have come."""
        while len(self.tokens.get(handle, [])) < count:
            assert self.step(), "nothing is computed any more"

    def take(self, handle: Handle, *, copy: bool = False, served: int = 0) -> Written:
        """A snapshot of a request, as it stands now. Raises what kept it from being taken."""
        command = WriteSnapshot(handle, 0, "copy" if copy else "export", served, {}, new_id())
        self.taking.ask(command)
        self.taking.turn()
        self.settle()
        self.ended += self.engine.take_ended()
        self.engine.check()
        return command.answer.result(timeout=0)

    def settle(self) -> None:
        """Until every snapshot that was begun is written, or has failed, and the engine knows."""
        for _ in range(self.writing.take_begun()):
            self.taking.done(self.done.get(timeout=10))

    def open(self, spec: GenerateSpec, snapshot_id: str, emitted: list[int]) -> Restored:
        restored = self.restoring.open(replace(spec, snapshot_id=snapshot_id, emitted=tuple(emitted)))
        assert restored is not None
        return restored

    def restore(self, spec: GenerateSpec, snapshot_id: str, emitted: list[int], handle: int = 1) -> Handle:
        """Goes on from a snapshot."""
        asked = replace(spec, snapshot_id=snapshot_id, emitted=tuple(emitted))
        restored = self.restoring.open(asked)
        assert restored is not None
        news = self.engine.restore(asked, Handle(handle), restored.image, restored.output, restored.cached_tokens)
        for one, token in zip(news.handles, news.tokens, strict=True):
            self.tokens.setdefault(one, []).append(token)
        restored.claim.consume()
        return Handle(handle)


@contextmanager
def room(model: Path, folder: Path, **changes: object) -> Iterator[Room]:
    """Ended with all its ranks when the block ends. `image_bytes` bounds images in memory, the rest is the engine's."""
    image_bytes = int(str(changes.pop("image_bytes", 64 << 20)))
    small: dict[str, object] = {"state_bytes": 8 << 20, "max_len": 512, "chunk_tokens": 32}
    config = engine_config(model, "both", **{**small, **changes})
    parts = retraction_parts(RetractionConfig(host_bytes=4 << 20), config.page_tokens)
    loaded = load(config, lambda _: None, lambda _: None, parts)
    built = loaded.built
    assert built is not None
    writing = CountedWriting(SnapshotFolder.open(SnapshotConfig(folder=str(folder))))
    try:
        memory = ImageMemory(image_bytes)
        images = StateImages(built.storage, built.slots, config.page_tokens, loaded.engine.facts.window, memory)
        identity = snapshot_identity(loaded.identity)
        done: SimpleQueue[SnapshotDone] = SimpleQueue()
        taking = SnapshotTaking(loaded.engine, images, writing, identity, done.put)
        snapshots = SnapshotFolder.open(SnapshotConfig(folder=str(folder)))
        max_len = loaded.engine.facts.max_len
        restoring = Restoring(snapshots, images.form, memory, identity, "here", max_len)
        yield Room(loaded, taking, restoring, done, writing, memory)
    finally:
        writing.close()
        if built.crew is not None:
            built.crew.close()
