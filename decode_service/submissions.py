"""Takes a router's request into the engine: opens what it goes on from, offers it, and uses that up; no sessions."""

import asyncio
from collections.abc import Callable

from decode_service.commands import Command, Submit
from decode_service.fetches import Fetches
from decode_service.ledger import Ledger
from decode_service.live import LiveRequest
from decode_service.snapshots.restoring import Restored
from decode_service.snapshots.service import Snapshots
from kv_transfer.hosting.mailbox import Mailbox
from segue.errors import Cancelled, ServingError, SnapshotError, SnapshotsOff, WorkerUnavailable
from segue.ids import WorkerId
from segue.wire import Cancel, Finish, GenerateSpec


class Submissions:
    """Owned by the event loop. `control` tells the engine that a request is let go of; `over`: the engine has ended."""

    def __init__(
        self,
        worker_id: WorkerId,
        ledger: Ledger,
        mailbox: "Mailbox[Command | None]",
        snapshots: Snapshots | None,
        control: Callable[[Cancel | Finish], None],
        over: Callable[[], bool],
    ) -> None:
        self._worker_id = worker_id
        self._ledger = ledger
        self._mailbox = mailbox
        self._snapshots = snapshots
        self._control = control
        self._over = over
        self.fetches: Fetches | None = None
        """Set when the worker has started, if it takes state from others."""

    async def submit(self, spec: GenerateSpec, request: LiveRequest) -> bool:
        """Returns when the router may be told: whether the request goes on from a snapshot.

        Raises the ServingError that refused it; then nothing is left of it.
        """
        fetches = self.fetches
        if fetches is not None:
            fetches.prepare(request.handle, spec)
        awaited = restored = False
        try:
            awaited, restored = await self._taken(spec, request)
        finally:
            if fetches is not None:
                if awaited:
                    fetches.start(request.handle)
                else:
                    fetches.forget(request.handle)
        return restored

    async def _taken(self, spec: GenerateSpec, request: LiveRequest) -> tuple[bool, bool]:
        """Whether its state is awaited from another worker, and whether it came from a snapshot."""
        try:
            restored = await self._opened(spec, request)
            try:
                awaited = await self._offered(spec, request, restored)
            except SnapshotError:
                if restored is None or restored.named:
                    raise
                restored, awaited = None, await self._offered(spec, request, None)
        except ServingError:
            self._ledger.refuse(request)
            raise
        try:
            # Before anything is told: who is told a token goes on from nothing else.
            if restored is not None:
                await self._used_up(restored)
        except ServingError:
            self._control(Cancel(request.handle, request.attempt))
            raise
        finally:
            self._ledger.accept(request)
        return awaited, restored is not None

    async def _opened(self, spec: GenerateSpec, request: LiveRequest) -> Restored | None:
        """The snapshot that a request goes on from, if it does. Raises what is wrong with one that was named."""
        if self._snapshots is None:
            if spec.snapshot_id:
                raise SnapshotsOff(f"worker {self._worker_id} has no snapshot folder")
            return None
        restored = await self._snapshots.opened(spec)
        if restored is not None and (request.leaving or self._over()):
            await self._snapshots.release(restored)
            raise Cancelled(f"the router left while a snapshot of request {spec.request_id} was opened")
        return restored

    async def _offered(self, spec: GenerateSpec, request: LiveRequest, restored: Restored | None) -> bool:
        try:
            submit = Submit(spec, request.handle, restored)
            self._mailbox.offer(submit)
            return await asyncio.wrap_future(submit.accepted)
        except ServingError:
            if restored is not None and self._snapshots is not None:
                await self._snapshots.release(restored)
            raise

    async def _used_up(self, restored: Restored) -> None:
        """Nobody else may go on from the snapshot, or this request does not go on either."""
        assert self._snapshots is not None, "a snapshot was opened without a folder"
        try:
            await self._snapshots.consume(restored)
        except SnapshotError as error:
            if restored.named:
                raise
            # It had only been found: the request can go on without it.
            raise WorkerUnavailable(f"worker {self._worker_id} has lost a copy: {error.message}") from error
