"""Requests that were taken off the device: their way to host memory, their line, and their way back; pure policy.

Whoever is off the device is in exactly one of three places: leaving (its units are still read), in line (it owns
nothing on the device), or returning (its units are being filled). The line is served first come, first served. A
request without a backup stands in the same line, and is recomputed from its tokens when its turn comes. One that was
still extending has little to lose: it waits among those that have not started.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from weakref import WeakKeyDictionary

from segue.batch.backups import Backup, BackupStore
from segue.batch.holdings import Holdings
from segue.batch.lifecycle import Phase
from segue.batch.ratio import NewTokenRatio, RetractionRules
from segue.batch.request import Request
from segue.batch.retraction_figures import RetractionFigures
from segue.errors import DigestMismatch


class Cause(Enum):
    """Why a request was taken off the device."""

    MEMORY = auto()
    TEST = auto()


@dataclass(slots=True, eq=False)
class Away:
    """A request off the device. Without a backup it is recomputed. `since` is when its last copy began."""

    request: Request
    backup: Backup | None
    left_at: float
    since: float


class Retraction:
    """Takes requests off the device and brings them back. Who and when is asked of `victim` and the scheduler."""

    def __init__(
        self,
        store: BackupStore,
        holdings: Holdings,
        rules: RetractionRules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rules = rules
        self.ratio = NewTokenRatio(rules)
        self._store = store
        self._holdings = holdings
        self._clock = clock
        self._leaving: list[Away] = []
        self._line: deque[Away] = deque()
        self._returning: list[Away] = []
        # When those left that are to be computed again and do not run yet.
        self._lost: WeakKeyDictionary[Request, float] = WeakKeyDictionary()
        self._figures = RetractionFigures()

    @property
    def waiting(self) -> bool:
        """Whether somebody waits to come back."""
        return bool(self._leaving or self._line)

    @property
    def leaving(self) -> bool:
        """Whether units will be free as soon as a copy has finished."""
        return bool(self._leaving)

    @property
    def waiting_count(self) -> int:
        return len(self._leaving) + len(self._line)

    @property
    def on_device(self) -> list[Request]:
        """Requests off the device that own units of it while these are copied."""
        return [away.request for away in (*self._leaving, *self._returning)]

    @property
    def head(self) -> Away | None:
        """Whose turn it is to come back."""
        return self._line[0] if self._line else None

    def retract(self, request: Request, cause: Cause) -> None:
        """Takes a decoding request off the device, between two steps. Its units are free when the copy has finished."""
        assert request.tables is not None
        assert request.computed == request.known_len - 1, "a decoding request has computed all but its pending token"
        request.move(Phase.RETRACTED)
        now = self._clock()
        backup = self._store.save(request.tables, request.computed)
        self._leaves(request, cause, bytes_=0 if backup is None else backup.bytes)
        away = Away(request, backup, now, now)
        if backup is None:
            self._holdings.release(request)
            self._line.append(away)
        else:
            self._leaving.append(away)
            self._settle_leaving()

    def enter(self, request: Request, backup: Backup) -> None:
        """A request comes with the state after `computed` tokens in host memory: it stands last in the line."""
        assert request.computed == backup.depth, f"request {request.request_id} comes with another depth than its state"
        request.move(Phase.RETRACTED)
        request.came_at = backup.depth
        now = self._clock()
        self._line.append(Away(request, backup, now, now))

    def put_back(self, request: Request, cause: Cause) -> None:
        """Takes an extending request off the device, between two steps: its units are free, and it starts anew."""
        self._leaves(request, cause, bytes_=0)
        self._holdings.release(request)
        request.move(Phase.WAITING)
        self._lose(request, self._clock())

    def settle(self) -> list[Request]:
        """Takes note of copies that have finished. Returns the requests that are back, and decode from now on."""
        self._settle_leaving()
        back: list[Request] = []
        # In the order of the line, whichever copy is the faster.
        while self._returning and (away := self._returning[0]).backup is not None and away.backup.copied:
            self._returning.pop(0)
            self._note_copied(away)
            request, backup = away.request, away.backup
            assert request.tables is not None
            try:
                self._store.require_whole(backup, request.tables)
            except DigestMismatch:
                self._figures = replace(self._figures, mismatched=self._figures.mismatched + 1)
                self._holdings.release(request)
                self._line.appendleft(Away(request, None, away.left_at, away.since))
                continue
            finally:
                self._store.free(backup)
            # What was put out after its snapshot was taken is computed again, from there on.
            whole = request.computed == request.known_len - 1
            request.move(Phase.DECODING if whole else Phase.EXTENDING)
            request.resumed = True
            figures = self._figures
            self._figures = replace(
                figures,
                resumed=figures.resumed + backup.hosted,
                restored=figures.restored + (not backup.hosted),
                away_s=figures.away_s + self._clock() - away.left_at,
            )
            back.append(request)
        return back

    def bring_back(self) -> None:
        """The head of the line has a backup: its units are allocated and filled. Raises PoolExhausted, and it stays."""
        away = self._line[0]
        assert away.backup is not None
        request = away.request
        self._holdings.readmit(request)
        assert request.tables is not None
        self._line.popleft()
        away.since = self._clock()
        self._store.restore(away.backup, request.tables)
        self._figures = replace(self._figures, restored_bytes=self._figures.restored_bytes + away.backup.bytes)
        self._returning.append(away)

    def recompute(self) -> Request:
        """The head of the line has no backup: it leaves the line, to be computed again from its tokens."""
        away = self._line.popleft()
        assert away.backup is None
        self._lose(away.request, away.left_at)
        return away.request

    def requeue(self, request: Request) -> None:
        """It was to be computed again elsewhere, which has failed: first in line, it will be computed here."""
        request.move(Phase.RETRACTED)
        request.recallable = False
        self._line.appendleft(Away(request, None, self._lost.pop(request), self._clock()))

    def recomputed(self, request: Request) -> None:
        """It has what it needs to be computed again, or has been."""
        left_at = self._lost.pop(request)
        figures = self._figures
        self._figures = replace(
            figures, recomputed=figures.recomputed + 1, away_s=figures.away_s + self._clock() - left_at
        )

    def drop(self, request: Request) -> bool:
        """Gives back all that an ended request has, if it is off the device. False when it is not."""
        for place in (self._leaving, self._line, self._returning):
            away = next((one for one in place if one.request is request), None)
            if away is None:
                continue
            if place is not self._line:
                # A unit or a piece of host memory must not change hands under a copy.
                self._store.finish()
                self._holdings.release(request)
            place.remove(away)
            if away.backup is not None:
                self._store.free(away.backup)
            return True
        return False

    def finish_copies(self) -> bool:
        """Waits for the copies that are under way. False when there were none."""
        if not (self._leaving or self._returning):
            return False
        self._store.finish()
        return True

    def forwarded(self, request: Request, start: int, count: int, *, decode: bool) -> None:
        """A forward over [start, start + count) of a request that was once retracted has been committed."""
        if not decode and request.resumed:
            self._figures = replace(self._figures, resumed_extend_tokens=self._figures.resumed_extend_tokens + count)
        if (again := min(start + count, request.deepest) - start) > 0:
            self._figures = replace(self._figures, recomputed_tokens=self._figures.recomputed_tokens + again)

    def figures(self) -> RetractionFigures:
        return replace(self._figures, waiting=self.waiting_count, host=self._store.counts())

    def check(self) -> None:
        """Asserts that nobody in line owns anything of the device, and that host memory is held for those here."""
        for away in self._line:
            assert away.request.tables is None, f"request {away.request.request_id} in line owns device memory"
            assert away.request.phase is Phase.RETRACTED
        self._store.check()
        held = any(counts.held for counts in self._store.counts())
        everybody = (*self._leaving, *self._line, *self._returning)
        backups = any(one.backup is not None and one.backup.hosted for one in everybody)
        assert held == backups, "host memory is held for nobody, or somebody's backup is not held"

    def _settle_leaving(self) -> None:
        while self._leaving and (away := self._leaving[0]).backup is not None and away.backup.copied:
            self._leaving.pop(0)
            self._note_copied(away)
            self._holdings.release(away.request)
            self._line.append(away)

    def _note_copied(self, away: Away) -> None:
        self._figures = replace(self._figures, copy_s=self._figures.copy_s + self._clock() - away.since)

    def _leaves(self, request: Request, cause: Cause, *, bytes_: int) -> None:
        assert not request.pinned, f"request {request.request_id} is being read"
        figures = self._figures
        self._figures = replace(
            figures,
            by_memory=figures.by_memory + (cause is Cause.MEMORY),
            by_test=figures.by_test + (cause is Cause.TEST),
            requests=figures.requests + (request.retractions == 0),
            saved_bytes=figures.saved_bytes + bytes_,
        )
        request.retractions += 1
        request.deepest = max(request.deepest, request.computed)

    def _lose(self, request: Request, left_at: float) -> None:
        """It is to be computed again from its tokens."""
        request.computed = 0
        request.came_at = None
        request.resumed = False
        if request.score_from is not None:
            # The scores of what had been computed are told already.
            request.score_from = max(request.score_from, request.deepest)
        self._lost[request] = left_at


def victim(running: Iterable[Request]) -> Request | None:
    """Who leaves the device first: lowest priority, then fewest generated tokens, ties the longest prompt.

    Of one priority those that decode leave first: what they have computed is not lost. None when nobody can: whoever is
    read from outside stays, and so does the last one that runs.
    """
    requests = list(running)
    able = [request for request in requests if not request.pinned]
    return None if len(requests) <= 1 else min(able, key=_worth, default=None)


def _worth(request: Request) -> tuple[int, bool, int, int, float, int]:
    extends = request.phase is Phase.EXTENDING
    return request.priority, extends, len(request.output), -request.prompt_len, -request.arrival, -request.handle
