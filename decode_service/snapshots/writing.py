"""Writes images of requests to the snapshot folder, one after another on a thread of its own; decides nothing."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version

from decode_service.snapshots.images import StateImage
from segue.errors import SnapshotError, SnapshotFailed, SnapshotNotReady
from segue.state.snapshot.folder import SnapshotFolder
from segue.state.snapshot.manifest import FORMAT_VERSION, Manifest, ManifestRequest, ManifestState

log = logging.getLogger(__name__)

WAITING_MAX = 4
"""Images that may wait in host memory for the one that is being written."""


@dataclass(frozen=True, slots=True)
class Written:
    """A snapshot that is durable."""

    snapshot_id: str
    computed: int
    bytes: int


class SnapshotWriting:
    """`submit` is the engine thread's; a future's callbacks run on the thread that writes."""

    def __init__(self, folder: SnapshotFolder, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        self._under_way, self._counting = 0, threading.Lock()
        self._closing = False

    def require_room(self) -> None:
        """Raises SnapshotNotReady when too many images wait already."""
        if self._under_way > WAITING_MAX:
            raise SnapshotNotReady(
                f"{self._under_way} snapshots are being written or wait to be; try again when they are done"
            )

    def submit(
        self, image: StateImage, request: ManifestRequest, state: ManifestState, snapshot_id: str | None = None
    ) -> "Future[Written]":
        """Begins to write, under the name that was drawn for it, if one was.

        The future ends with what was written, or with the ServingError that kept it from being, for good: after
        `close`, at once.
        """
        with self._counting:
            if self._closing:
                failed: Future[Written] = Future()
                failed.set_exception(_ending())
                return failed
            self._under_way += 1
            future = self._pool.submit(self._write, image, request, state, snapshot_id)
        future.add_done_callback(self._done)
        return future

    def discard(self, snapshot_id: str) -> None:
        """Nobody needs that snapshot any more. After `close` it is left to expire."""
        with self._counting:
            if not self._closing:
                self._pool.submit(self._delete, snapshot_id)

    def close(self) -> None:
        """Whatever is being written is finished, no other write is begun, and what nobody needs is still removed."""
        with self._counting:
            self._closing = True
        self._pool.shutdown(wait=True)

    def _done(self, _: "Future[Written]") -> None:
        with self._counting:
            self._under_way -= 1

    def _delete(self, snapshot_id: str) -> None:
        try:
            self._folder.delete(snapshot_id)
        except SnapshotError as error:
            # Used up by whoever goes on from it, or it will expire.
            log.info("snapshot %s was not deleted: %s", snapshot_id, error.message)

    def _write(
        self, image: StateImage, request: ManifestRequest, state: ManifestState, snapshot_id: str | None
    ) -> Written:
        if self._closing:
            raise _ending()
        with self._folder.begin(image.bytes, snapshot_id, periodic=request.kind == "periodic") as writer:
            payloads = tuple(writer.write_rank(rank, [*payload.values()]) for rank, payload in enumerate(image.ranks))
            manifest = Manifest(
                version=FORMAT_VERSION,
                build=version("segue"),
                snapshot_id=writer.snapshot_id,
                created_s=self._clock(),
                request=request,
                state=state,
                payloads=payloads,
            )
            writer.commit(manifest)
        size = sum(payload.bytes for payload in payloads)
        log.info("snapshot %s: %d bytes of request %s", writer.snapshot_id, size, request.request_id)
        return Written(writer.snapshot_id, image.depth, size)


def _ending() -> SnapshotFailed:
    """Of what was not begun, and never will be."""
    return SnapshotFailed("the worker ends before the snapshot was written")
