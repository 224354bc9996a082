"""Copies of running requests by policy: every so many tokens or seconds, the newest of each request, until it ends.

On the engine thread. A copy that cannot be taken now is taken a little later; one that fails is logged, and nobody else
hears of it.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from decode_service.snapshots.commands import TakeSnapshot
from decode_service.snapshots.exports import Exports
from decode_service.snapshots.writing import SnapshotWriting, Written
from segue.batch.lifecycle import Phase
from segue.batch.request import Request
from segue.engine import Engine
from segue.errors import SnapshotNotReady
from segue.ids import Handle

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Copied:
    """What there is of one request: output tokens and time of its last copy, and the snapshot that has it."""

    tokens: int
    at: float
    snapshot_id: str = ""
    under_way: bool = False
    ended: bool = False


class Copies:
    """`every_tokens` and `every_s` are those of SnapshotConfig; 0: not by that."""

    def __init__(
        self,
        engine: Engine,
        exports: Exports,
        writing: SnapshotWriting,
        *,
        every_tokens: int,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert every_tokens or every_s, "no copies are wanted"
        self._engine = engine
        self._exports = exports
        self._writing = writing
        self._every_tokens, self._every_s = every_tokens, every_s
        self._clock = clock
        self._copied: dict[Handle, _Copied] = {}

    def turn(self) -> None:
        """Takes the copies that are due, between two steps."""
        now = self._clock()
        for request in self._engine.live_requests():
            if request.phase is not Phase.DECODING or request.pinned:
                continue
            # Output that came with it counts: whatever it was continued from is used up, and would be lost again.
            copied = self._copied.setdefault(request.handle, _Copied(0, now))
            if not copied.under_way and self._due(request, copied, now) and not self._take(request, copied, now):
                return

    def ended(self, handle: Handle) -> None:
        """Nobody will go on from a request's copy."""
        copied = self._copied.get(handle)
        if copied is None:
            return
        copied.ended = True
        if not copied.under_way:
            del self._copied[handle]
            self._discard(copied.snapshot_id)

    def _due(self, request: Request, copied: _Copied, now: float) -> bool:
        if self._every_tokens and len(request.output) - copied.tokens >= self._every_tokens:
            return True
        return bool(self._every_s) and now - copied.at >= self._every_s and len(request.output) > copied.tokens

    def _take(self, request: Request, copied: _Copied, now: float) -> bool:
        """False when no more can be taken now."""
        command = TakeSnapshot(request.handle, request.attempt, kind="periodic", served=0, about={})
        command.answer.set_running_or_notify_cancel()
        try:
            self._exports.take(command)
        except SnapshotNotReady:
            return False
        copied.tokens, copied.at, copied.under_way = len(request.output), now, True
        handle = request.handle
        command.answer.add_done_callback(lambda answer: self._done(handle, answer))
        return True

    def _done(self, handle: Handle, answer: "Future[Written]") -> None:
        copied = self._copied[handle]
        copied.under_way = False
        if (error := answer.exception()) is not None:
            log.warning("a copy of the request of handle %d was not written: %s", handle, error)
            if copied.ended:
                self.ended(handle)
            return
        older, copied.snapshot_id = copied.snapshot_id, answer.result().snapshot_id
        self._discard(older)
        if copied.ended:
            self.ended(handle)

    def _discard(self, snapshot_id: str) -> None:
        if snapshot_id:
            self._writing.discard(snapshot_id)
