"""Copies of running requests by policy: every so many positions or seconds, the newest of each request, until it ends.

On the engine thread. A copy that cannot be taken now is taken a little later; one that fails is logged, and nobody else
hears of it.
"""

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from decode_service.snapshots.commands import WriteSnapshot
from decode_service.snapshots.taking import SnapshotTaking
from decode_service.snapshots.writing import SnapshotWriting, Written
from segue.batch.request import Request
from segue.engine import Engine
from segue.errors import SnapshotMemoryShort, SnapshotNotReady
from segue.ids import Handle
from segue.state.snapshot.names import new_id

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Copied:
    """What there is of one request: positions and time of its last copy, its newest one, and one being written.

    Before there is any: what it would cost to lose, which is everything from its first position and its beginning here.
    """

    at: float
    computed: int = 0
    newest: str | None = None
    coming: str | None = None


class PeriodicCopies:
    """`every_tokens` and `every_s` are those of SnapshotConfig; 0: not by that."""

    def __init__(
        self,
        engine: Engine,
        taking: SnapshotTaking,
        writing: SnapshotWriting,
        *,
        every_tokens: int,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        assert every_tokens or every_s, "no copies are wanted"
        self._engine = engine
        self._taking = taking
        self._writing = writing
        self._every_tokens, self._every_s = every_tokens, every_s
        self._clock = clock
        self._copied: dict[Handle, _Copied] = {}

    def turn(self) -> None:
        """Takes the copy that is due for longest, between two steps: one, because every stream waits for it."""
        now, due = self._clock(), list[tuple[float, Request, _Copied]]()
        for request in self._engine.live_requests():
            if request.tables is not None and request.handle not in self._copied:
                self._copied[request.handle] = _Copied(now)
            if not request.stands_whole:
                continue
            copied = self._copied[request.handle]
            if copied.coming is None and (overdue := self._overdue(request, copied, now)) >= 1:
                due.append((overdue, request, copied))
        if due:
            _, request, copied = max(due, key=lambda one: one[0])
            self._take(request, copied, now)

    def ended(self, handle: Handle) -> None:
        """Nobody will go on from a request's copy."""
        if (copied := self._copied.pop(handle, None)) is not None:
            self._discard(copied.newest)
            # What is being written is there before it is discarded: one thread does both, in order.
            self._discard(copied.coming)

    def _overdue(self, request: Request, copied: _Copied, now: float) -> float:
        """What has passed since the last copy, in intervals; 0 when nothing was computed since."""
        positions = request.computed - copied.computed
        if positions <= 0:
            return 0.0
        by_tokens = positions / self._every_tokens if self._every_tokens else 0.0
        return max(by_tokens, (now - copied.at) / self._every_s if self._every_s else 0.0)

    def _take(self, request: Request, copied: _Copied, now: float) -> None:
        command = WriteSnapshot(
            request.handle, request.attempt, kind="periodic", served=0, about={}, snapshot_id=new_id()
        )
        try:
            self._taking.take(command)
        except SnapshotMemoryShort as error:
            log.warning("a copy of a running request was not taken, it is due again later: %s", error.message)
            copied.computed, copied.at = request.computed, now
            return
        except SnapshotNotReady:
            # Too many wait to be written: it stays due.
            return
        copied.computed, copied.at, copied.coming = request.computed, now, command.snapshot_id
        handle = request.handle
        command.answer.add_done_callback(lambda answer: self._done(handle, copied, answer))

    def _done(self, handle: Handle, copied: _Copied, answer: "Future[Written]") -> None:
        if self._copied.get(handle) is not copied:
            return  # It has ended meanwhile.
        written, copied.coming = copied.coming, None
        if (error := answer.exception()) is not None:
            log.warning("a copy of the request of handle %d was not written: %s", handle, error)
            return
        older, copied.newest = copied.newest, written
        self._discard(older)

    def _discard(self, snapshot_id: str | None) -> None:
        if snapshot_id is not None:
            self._writing.discard(snapshot_id)
