"""Takes a snapshot of a live request at the worker that has it, so that what its client has is exactly what it says."""

import logging
from dataclasses import dataclass

from router.inbox import Inbox
from router.link import Link
from router.shell import Shell
from router.snapshots.about import about_json
from router.snapshots.running import served_tokens
from segue.errors import InvalidRequest, SnapshotNotReady, SnapshotsOff, WorkerUnavailable
from segue.wire import SnapshotTaken, TakeSnapshot

log = logging.getLogger("segue.router")


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, and of which request."""

    request_id: str
    copy: bool
    snapshot: SnapshotTaken


class Exports:
    """One for all requests of a router."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def export(self, request_id: str) -> Taken:
        """The request leaves its worker, and its client is told where to. Raises what the worker refused it with.

        From now on until that is known nothing more goes to the client: the snapshot says what it has.
        """
        link, inbox, asked = self._ask(request_id, copy=False)
        inbox.held = True
        try:
            taken = await self._take(link, asked, inbox)
            # The worker's own word has the usage; without a session it does not come.
            await inbox.settle(self._shell.config.finish_wait_s)
            inbox.leave(taken.snapshot_id)
        finally:
            inbox.release()
        log.info("request %s went to snapshot %s", request_id, taken.snapshot_id)
        return Taken(request_id, copy=False, snapshot=taken)

    async def copy(self, request_id: str) -> Taken:
        """The request runs on."""
        link, _, asked = self._ask(request_id, copy=True)
        taken = await link.client.take_snapshot(asked, self._shell.config.snapshot_timeout_s)
        return Taken(request_id, copy=True, snapshot=taken)

    def _ask(self, request_id: str, *, copy: bool) -> tuple[Link, Inbox, TakeSnapshot]:
        """Whom to ask, where the answer shows, and what to ask. Raises what keeps the request from being asked for."""
        shell = self._shell
        running = shell.running.find(request_id)
        if len(running.choices) != 1:
            raise InvalidRequest(
                f"request '{request_id}' has {len(running.choices)} choices; a snapshot is of a request with one",
                param="n",
            )
        (choice,), (planned,) = running.choices, running.planned
        placed = choice.placed
        if placed is None or not choice.taken:
            raise SnapshotNotReady(f"request '{request_id}' has no output at a worker at this moment; try again")
        link, inbox = placed
        if inbox.held:
            raise SnapshotNotReady(f"a snapshot of request '{request_id}' is being taken already")
        if link.description is None or not link.description.snapshots:
            raise SnapshotsOff(f"worker {link.address} keeps no snapshots: its snapshot.folder is not set")
        served = served_tokens(shell.tokenizer, planned, running.text, choice.taken, choice.sent)
        about = about_json(running.about(choice))
        asked = TakeSnapshot(
            router_id=shell.fleet.router_id,
            handle=inbox.handle,
            attempt=inbox.attempt,
            copy=copy,
            served=served,
            about=about,
        )
        return link, inbox, asked

    async def _take(self, link: Link, asked: TakeSnapshot, inbox: Inbox) -> SnapshotTaken:
        config = self._shell.config
        try:
            return await link.client.take_snapshot(asked, config.snapshot_timeout_s)
        except WorkerUnavailable:
            # It may have been taken all the same: then the choice's own session says so, and soon.
            await inbox.settle(config.call_timeout_s)
            raise
