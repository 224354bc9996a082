"""A worker's snapshots as its event loop sees them: opens, lists and deletes on threads, makes the engine's part."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from decode_service.snapshots.commands import SnapshotDone, WriteSnapshot
from decode_service.snapshots.copying import PeriodicCopies
from decode_service.snapshots.identity import snapshot_identity
from decode_service.snapshots.images import StateImages
from decode_service.snapshots.memory import ImageMemory
from decode_service.snapshots.restoring import Restored, Restoring
from decode_service.snapshots.taking import SnapshotTaking
from decode_service.snapshots.threads import FolderThreads, SharedLook
from decode_service.snapshots.writing import SnapshotWriting, Written
from kv_transfer.hosting.loading import Loaded
from segue.errors import InvalidRequest, SnapshotError, SnapshotFailed, SnapshotManifestInvalid, WorkerUnavailable
from segue.ids import WorkerId
from segue.state.snapshot.config import SnapshotConfig
from segue.state.snapshot.fields import Fields, JsonObject, from_json
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.manifest import manifest_json
from segue.state.snapshot.summary import SnapshotSummary
from segue.wire import GenerateSpec

log = logging.getLogger(__name__)

SWEEP_S = 60.0
LOADS_MAX = 16
"""States that are read at once, which takes minutes where they are large."""

SHORT_MAX = 4
"""Calls of a moment at once, for which no state is read. Whoever makes one waits for it, and so does its router."""

FIND_COPY_S = 10.0
"""What the copy of a request may take to be found and read: it can be computed again, and its client waits."""

CLOSE_S = 10.0
"""How long calls that have begun are waited for at the end."""

NOT_RELEASED = "a claim was not given back, its lease ends by itself: %s"


class Snapshots:
    """One folder. `taking` is called once, on the engine thread; everything else on the event loop."""

    def __init__(self, config: SnapshotConfig, worker_id: WorkerId, *, find_copy_s: float = FIND_COPY_S) -> None:
        """Raises ConfigError for a folder or a key that cannot be used."""
        self._config, self._find_copy_s = config, find_copy_s
        self._folder = SnapshotFolder.open(config)
        self._writing = SnapshotWriting(self._folder)
        self._loads, self._short = FolderThreads(LOADS_MAX), FolderThreads(SHORT_MAX)
        self._listing = SharedLook(self._short, self._listed)
        self._owner = str(worker_id)
        self._restoring: Restoring | None = None

    def taking(self, loaded: Loaded, post: Callable[[SnapshotDone], None]) -> SnapshotTaking:
        """What takes snapshots of an engine that was loaded. `post` takes commands for its thread."""
        built, facts = loaded.built, loaded.engine.facts
        assert built is not None, "there is no state to take"
        memory = ImageMemory(self._config.host_bytes)
        images = StateImages(built.storage, built.slots, facts.page_tokens, facts.window, memory)
        identity = snapshot_identity(loaded.identity)
        self._restoring = Restoring(self._folder, images.form, memory, identity, self._owner, facts.max_len)
        return SnapshotTaking(loaded.engine, images, self._writing, identity, post)

    @staticmethod
    def about(raw: bytes) -> JsonObject:
        """What a router says of a request. Raises InvalidRequest for anything but one JSON object."""
        try:
            return Fields({"about": from_json(raw or b"{}", "about")}, "the request").object("about")
        except SnapshotManifestInvalid as error:
            raise InvalidRequest(f"a snapshot was asked for: {error.message}") from error

    async def written(self, command: WriteSnapshot, ended: "asyncio.Future[None]") -> Written:
        """What comes of a command, which is withdrawn if whoever awaits this is cancelled; `ended`: the worker's end.

        Raises what kept it from being written, or WorkerUnavailable when the worker ends before that is known.
        """
        answer = asyncio.wrap_future(command.answer)
        first: set[asyncio.Future[Any]] = {answer, ended}
        try:
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            answer.cancel()
            raise
        if not answer.done():
            # What is being written is finished: a failure is what was not written and never will be.
            raise WorkerUnavailable(
                f"worker {self._owner} ends: nobody knows whether snapshot {command.snapshot_id} comes to be"
            )
        return answer.result()

    def copies(self, loaded: Loaded, taking: SnapshotTaking) -> PeriodicCopies | None:
        """What takes copies by policy; None when none are wanted."""
        config = self._config
        if not (config.every_tokens or config.every_s):
            return None
        return PeriodicCopies(
            loaded.engine, taking, self._writing, every_tokens=config.every_tokens, every_s=config.every_s
        )

    async def opened(self, spec: GenerateSpec) -> Restored | None:
        """What a request goes on from: the snapshot that it names, else a copy of one that had begun elsewhere, if any.

        Raises what is wrong with one that is named.
        """
        named = await self.open(spec) if spec.snapshot_id else None
        if not spec.emitted or spec.moved is not None or not (self._config.every_tokens or self._config.every_s):
            return named
        # Also beside the one that was named: a worker that was lost has left copies that nobody else would remove.
        return await self._newest(replace(spec, snapshot_doubtful=False), named)

    async def _newest(self, spec: GenerateSpec, found: Restored | None) -> Restored | None:
        """`found`, else the newest periodic copy of a request, claimed and loaded; all other ones go.

        None when none is of use, or none is found in time.
        """
        try:
            async with asyncio.timeout(self._find_copy_s):
                for copy in await self._copies_of(spec):
                    found = await self._tried(copy, found)
        except TimeoutError:
            # What is still being claimed is given back, what was still to be removed expires.
            log.warning(
                "copies of request %s: %.0f s were not enough to look for them", spec.request_id, self._find_copy_s
            )
        except SnapshotFailed:
            # The worker ends: what is claimed is still given back by whoever gets this.
            if found is None:
                raise
        return found

    async def _copies_of(self, spec: GenerateSpec) -> Sequence[GenerateSpec]:
        """The same request on from each of its copies, the newest first. Raises SnapshotFailed."""
        there = await self._listing.ask()
        ids = [one.snapshot_id for one in there if (one.kind, one.request_id) == ("periodic", spec.request_id)]
        return [replace(spec, snapshot_id=snapshot_id) for snapshot_id in reversed(ids)]

    async def _tried(self, copy: GenerateSpec, found: Restored | None) -> Restored | None:
        """`found`, and the copy goes; else the copy, claimed and loaded, if it is of use."""
        try:
            if found is not None:
                await self._short.run(self._opener.discard, copy)
                return found
            opened = await self.open(copy)
        except SnapshotError as error:
            log.info("copy %s of request %s is of no use: %s", copy.snapshot_id, copy.request_id, error.message)
            return found
        return None if opened is None else replace(opened, named=False)

    async def open(self, spec: GenerateSpec) -> Restored | None:
        """Claims and loads the snapshot that a request goes on from; None when it goes on without it.

        Raises what is wrong with it; then it stays.
        """
        opening = self._loads.begin(self._opener.open, spec)
        try:
            return await asyncio.shield(asyncio.wrap_future(opening))
        except asyncio.CancelledError:
            # The thread goes on; what it claims must not stay claimed.
            opening.add_done_callback(self._give_up)
            raise

    @property
    def _opener(self) -> Restoring:
        assert self._restoring is not None, "snapshots are opened after the start"
        return self._restoring

    def _listed(self) -> Sequence[SnapshotSummary]:
        """The oldest first; nothing where the disk fails: whoever can do without goes on without."""
        try:
            return self._folder.list()
        except SnapshotError as error:
            log.warning("copies cannot be looked for: %s", error.message)
            return []

    async def consume(self, restored: Restored) -> None:
        """The engine has the request: from now on nobody else can go on from the snapshot. Raises SnapshotFailed."""
        await self._short.run(restored.claim.consume)

    async def release(self, restored: Restored) -> None:
        """The engine did not take the request; somebody else may."""
        try:
            await self._short.run(_release, restored)
        except SnapshotError as error:
            log.warning(NOT_RELEASED, error.message)

    async def list(self) -> Sequence[SnapshotSummary]:
        """All that are complete and have not expired, the oldest first. Raises SnapshotFailed."""
        return await self._short.run(self._folder.list)

    async def inspect(self, snapshot_id: str, *, verify: bool) -> bytes:
        """The manifest as JSON; with `verify` every byte of the payloads was checked."""

        def read() -> bytes:
            snapshot = self._folder.read(snapshot_id)
            if verify:
                snapshot.verify()
            return manifest_json(snapshot.manifest)

        return await self._loads.run(read)

    async def delete(self, snapshot_id: str) -> None:
        await self._short.run(self._folder.delete, snapshot_id)

    async def keep_clean(self) -> None:
        """Removes what has expired and what dead writers left, now and then, until it is cancelled."""
        while True:
            try:
                await self._loads.run(self._folder.sweep)
            except SnapshotError as error:
                log.warning("the snapshot folder cannot be swept: %s", error.message)
            await asyncio.sleep(SWEEP_S)

    async def close(self) -> None:
        """What is being written is finished. So is what was begun with the folder, if that does not take too long."""
        await asyncio.to_thread(self._writing.close)
        await asyncio.gather(*(asyncio.to_thread(one.close, CLOSE_S) for one in (self._loads, self._short)))

    def _give_up(self, opening: "Future[Restored | None]") -> None:
        if opening.exception() is not None or (restored := opening.result()) is None:
            return
        try:
            # Whichever thread this is, it does not wait for the disk.
            self._short.begin(_release, restored)
        except SnapshotError as error:
            log.warning(NOT_RELEASED, error.message)


def _release(restored: Restored) -> None:
    try:
        restored.claim.release()
    except SnapshotError as error:
        log.warning(NOT_RELEASED, error.message)
