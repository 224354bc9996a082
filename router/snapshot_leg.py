"""The snapshot that one choice is in, or may be in, between two workers; asks no worker for anything.

It was named by whoever resumes it; or an export of the choice was asked for and nobody knows what came of it; or the
choice was parked: its worker ends, nobody else can go on with it now, and its client is told nothing of that.
"""

from collections.abc import Callable
from dataclasses import dataclass

from router.metrics import Metrics
from segue.errors import (
    ServingError,
    SnapshotClaimed,
    SnapshotDigestMismatch,
    SnapshotError,
    SnapshotManifestInvalid,
    SnapshotNotFound,
    SnapshotVersionMismatch,
)


@dataclass(frozen=True, slots=True)
class KeptSnapshot:
    """A snapshot, and the addresses of the workers in whose folders it is.

    One that is `doubtful` may never have been written: any worker that keeps snapshots is to say so.
    """

    snapshot_id: str
    addresses: frozenset[str] = frozenset()
    doubtful: bool = False


# It is the snapshot that is of no use, whoever looks at it.
_USELESS = (SnapshotDigestMismatch, SnapshotManifestInvalid, SnapshotVersionMismatch)


class SnapshotLeg:
    """`discard` is given the ids of parked snapshots that nobody goes on from; `metrics` count what came of them."""

    def __init__(self, first: KeptSnapshot | None, discard: Callable[[str], None], metrics: Metrics) -> None:
        self._discard = discard
        self._metrics = metrics
        # Until a worker has accepted the choice with it: one that is lost after that leaves its tokens to go on from.
        self.offered = first
        self._doubt: KeptSnapshot | None = None
        # Of the parking that was asked for last, while the choice may be in it.
        self._parking = ""
        self._left = False
        # Tries that it took beside those that every choice has.
        self.count = 0

    @property
    def doubtful(self) -> bool:
        """Whether its worker was asked for an export, and nobody knows yet what came of that."""
        return self._doubt is not None

    @property
    def parking(self) -> bool:
        """Whether the choice is parked, or was to be and nobody knows yet."""
        return bool(self._parking)

    @property
    def parked(self) -> bool:
        """Whether the choice has left its worker for a snapshot, and no other one has it."""
        return self._left

    def doubt(self, snapshot_id: str) -> None:
        """From now on the choice may be in that snapshot: if its worker is lost, whoever is next looks there first."""
        assert not self._parking, "a choice that is being parked is exported by nobody else"
        self._doubt = KeptSnapshot(snapshot_id, doubtful=True)

    def park(self, snapshot_id: str) -> None:
        """The same for one that its worker is asked for so that the choice can wait in it."""
        self.doubt(snapshot_id)
        self._parking = snapshot_id

    def undoubt(self, snapshot_id: str) -> None:
        """It is not, and will not be."""
        if self._doubt is not None and self._doubt.snapshot_id == snapshot_id:
            self.move()

    def move(self) -> None:
        """The choice has left its worker with its state: nobody has it in a snapshot."""
        self._doubt = None
        self._parking = ""

    def leave(self, snapshot_id: str) -> bool:
        """The choice has left its worker for a snapshot. Whether that is where it was to be parked."""
        if snapshot_id != self._parking:
            return False
        self._left = True
        self.count += 1
        self._metrics.parked()
        return True

    def begin(self) -> None:
        """A worker is looked for."""
        if self._doubt is not None:
            self.offered, self._doubt = self._doubt, None

    def accepted(self, restored: bool) -> None:
        """A worker has the choice, and has used up the snapshot that it was told, or did not find it."""
        if self.offered is None or not self._parking:
            self._forget()
        elif not restored:
            # The folders of two workers need not be one.
            self.go_without()
        else:
            if not self._left:
                # Of that nobody could tell.
                self._metrics.parked()
            self._metrics.unparked()
            self._forget()

    def go_without(self) -> None:
        """The choice is computed again."""
        self._metrics.continued()
        self.give_up()
        self._forget()

    def give_up(self) -> None:
        """Nobody goes on with the choice, or only without what it was parked in."""
        if self._parking:
            self._discard(self._parking)

    def refused(self, error: ServingError) -> bool:
        """Whether a choice goes on although a worker refused what it is parked in.

        It goes on without, where nobody can use that; else another worker may, or the same one later, and it stays.
        Where somebody else has it, or has used it up, the choice is theirs: it does not go on here in any way.
        """
        if self.offered is None or not self._parking or not isinstance(error, SnapshotError):
            return False
        if isinstance(error, SnapshotClaimed | SnapshotNotFound):
            self._forget()
            return False
        if isinstance(error, _USELESS):
            self.go_without()
        else:
            self.count += 1
        return True

    def _forget(self) -> None:
        self.offered = self._doubt = None
        self._parking, self._left = "", False
