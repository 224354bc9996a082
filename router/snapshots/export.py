"""Takes a snapshot of a live request at the worker that has it, so that what its client has is exactly what it says."""

import logging
from dataclasses import dataclass
from functools import partial

from router.choice import Choice
from router.inbox import Inbox
from router.link import Link
from router.openai.plan import PlannedChoice
from router.shell import Shell
from router.snapshots.about import about_json
from router.snapshots.beside import TOKENS_INLINE_MAX, beside
from router.snapshots.running import Running, served_tokens
from segue.errors import InvalidRequest, ServingError, SnapshotNotReady, SnapshotsOff, WorkerUnavailable
from segue.state.snapshot.names import new_id
from segue.wire import SnapshotTaken, TakeSnapshot

log = logging.getLogger("segue.router")


@dataclass(frozen=True, slots=True)
class Taken:
    """What was taken, and of which request."""

    request_id: str
    copy: bool
    snapshot: SnapshotTaken


@dataclass(frozen=True, slots=True)
class _Target:
    """A live request, the one choice that it has, and where that is now."""

    running: Running
    choice: Choice
    planned: PlannedChoice
    link: Link
    inbox: Inbox


class Exports:
    """One for all requests of a router."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def export(self, request_id: str) -> Taken:
        """The request leaves its worker, and its client is told where to. Raises what the worker refused it with.

        From now on until that is known nothing more goes to the client: the snapshot says what it has.
        """
        target = self._find(request_id)
        inbox = target.inbox
        inbox.held = True
        try:
            taken = await self._take(target)
            # The worker's own word has the usage; without a session it does not come.
            await inbox.settle(self._shell.config.finish_wait_s)
            inbox.leave(taken.snapshot_id)
        finally:
            inbox.release()
        log.info("request %s went to snapshot %s", request_id, taken.snapshot_id)
        return Taken(request_id, copy=False, snapshot=taken)

    async def copy(self, request_id: str) -> Taken:
        """The request runs on."""
        target = self._find(request_id)
        asked = await self._to_ask(target, copy=True)
        taken = await target.link.client.take_snapshot(asked, self._shell.config.snapshot_timeout_s)
        return Taken(request_id, copy=True, snapshot=taken)

    def _find(self, request_id: str) -> _Target:
        """Raises what keeps a snapshot from being asked for."""
        running = self._shell.running.find(request_id)
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
        if inbox.held or choice.kept.parking:
            raise SnapshotNotReady(f"a snapshot of request '{request_id}' is being taken already")
        if not link.keeps_snapshots:
            raise SnapshotsOff(f"worker {link.address} keeps no snapshots: its snapshot.folder is not set")
        return _Target(running, choice, planned, link, inbox)

    async def _to_ask(self, target: _Target, *, copy: bool) -> TakeSnapshot:
        """What to ask the worker, as things are now. Its snapshot has a name that nobody has used."""
        shell, running, choice, inbox = self._shell, target.running, target.choice, target.inbox
        # Taken at one moment: a copy's request runs on.
        about, output = running.about(choice), tuple(choice.taken)
        served = partial(served_tokens, shell.tokenizer, target.planned, running.text, output, about.sent)
        walked = len(output) + (len(target.planned.prompt) if running.text.echo else 0)
        asked = TakeSnapshot(
            router_id=shell.fleet.router_id,
            handle=inbox.handle,
            attempt=inbox.attempt,
            copy=copy,
            served=await beside(walked, TOKENS_INLINE_MAX, served),
            about=about_json(about),
            snapshot_id=new_id(),
        )
        if target.choice.placed != (target.link, target.inbox):
            raise SnapshotNotReady("the request has left its worker, or has ended, before a snapshot was asked for")
        return asked

    async def _take(self, target: _Target) -> SnapshotTaken:
        config = self._shell.config
        asked = await self._to_ask(target, copy=False)
        target.choice.kept.doubt(asked.snapshot_id)
        try:
            return await target.link.client.take_snapshot(asked, config.snapshot_timeout_s)
        except WorkerUnavailable:
            # It may have been taken all the same: then the choice's own session says so, and soon.
            await target.inbox.settle(config.call_timeout_s)
            raise
        except ServingError:
            target.choice.kept.undoubt(asked.snapshot_id)
            raise
