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


@dataclass(frozen=True, slots=True)
class Asked:
    """The choice is at its worker, which was asked for an export of it, maybe to park it; what came of that is open."""

    snapshot_id: str
    parks: bool


@dataclass(frozen=True, slots=True)
class Offered:
    """Whoever takes the choice is to go on from this. One that was parked has `left` for it, or may have.

    Until a worker has accepted the choice with it: one that is lost after that leaves its tokens to go on from.
    """

    snapshot: KeptSnapshot
    parked: bool = False
    left: bool = False


# It is the snapshot that is of no use, whoever looks at it.
_USELESS = (SnapshotDigestMismatch, SnapshotManifestInvalid, SnapshotVersionMismatch)


class SnapshotLeg:
    """`discard` is given the ids of parked snapshots that nobody goes on from; `metrics` count what came of them."""

    def __init__(self, first: KeptSnapshot | None, discard: Callable[[str], None], metrics: Metrics) -> None:
        self._discard = discard
        self._metrics = metrics
        # None: the choice is in no snapshot.
        self._state: Asked | Offered | None = None if first is None else Offered(first)
        # Tries that it took beside those that every choice has.
        self.count = 0

    @property
    def offered(self) -> KeptSnapshot | None:
        """What the next worker is told to go on from."""
        return self._state.snapshot if isinstance(self._state, Offered) else None

    @property
    def doubtful(self) -> bool:
        """Whether its worker was asked for an export, and nobody knows yet what came of that."""
        return isinstance(self._state, Asked)

    @property
    def parking(self) -> bool:
        """Whether the choice is parked, or was to be and nobody knows yet."""
        return self._parking is not None

    @property
    def parked(self) -> bool:
        """Whether the choice has left its worker for a snapshot, and no other one has it."""
        return isinstance(self._state, Offered) and self._state.left

    def doubt(self, snapshot_id: str) -> None:
        """From now on the choice may be in that snapshot: if its worker is lost, whoever is next looks there first."""
        self._ask(Asked(snapshot_id, parks=False))

    def park(self, snapshot_id: str) -> None:
        """The same for one that its worker is asked for so that the choice can wait in it."""
        self._ask(Asked(snapshot_id, parks=True))

    def undoubt(self, snapshot_id: str) -> None:
        """It is not, and will not be."""
        if isinstance(self._state, Asked) and self._state.snapshot_id == snapshot_id:
            self._state = None

    def move(self) -> None:
        """The choice has left its worker with its state: nobody has it in a snapshot."""
        self._state = None

    def leave(self, snapshot_id: str) -> bool:
        """The choice has left its worker for a snapshot. Whether that is where it was to be parked."""
        if self._state != Asked(snapshot_id, parks=True):
            return False
        self._state = Offered(KeptSnapshot(snapshot_id, doubtful=True), parked=True, left=True)
        self.count += 1
        self._metrics.parked()
        return True

    def begin(self) -> None:
        """A worker is looked for."""
        if isinstance(self._state, Asked):
            self._state = Offered(KeptSnapshot(self._state.snapshot_id, doubtful=True), parked=self._state.parks)

    def accepted(self, restored: bool) -> None:
        """A worker has the choice, and has used up the snapshot that it was told, or did not find it."""
        state, self._state = self._state, None
        if not isinstance(state, Offered) or not state.parked:
            return
        if not restored:
            # The folders of two workers need not be one.
            self._discard(state.snapshot.snapshot_id)
            self._metrics.continued()
            return
        if not state.left:
            # Of that nobody could tell.
            self._metrics.parked()
        self._metrics.unparked()

    def go_without(self) -> None:
        """The choice is computed again."""
        self._metrics.continued()
        self.give_up()
        self._state = None

    def give_up(self) -> None:
        """Nobody goes on with the choice, or only without what it was parked in."""
        if (snapshot_id := self._parking) is not None:
            self._discard(snapshot_id)

    def refused(self, error: ServingError) -> bool:
        """Whether a choice goes on although a worker refused what it is parked in.

        It goes on without, where nobody can use that; else another worker may, or the same one later, and it stays.
        Where somebody else has it, or has used it up, the choice is theirs: it does not go on here in any way.
        """
        if not (isinstance(self._state, Offered) and self._state.parked and isinstance(error, SnapshotError)):
            return False
        if isinstance(error, SnapshotClaimed | SnapshotNotFound):
            self._state = None
            return False
        if isinstance(error, _USELESS):
            self.go_without()
        else:
            self.count += 1
        return True

    @property
    def _parking(self) -> str | None:
        """The snapshot in which the choice is parked, or was to be."""
        match self._state:
            case Asked(snapshot_id, parks=True):
                return snapshot_id
            case Offered(snapshot, parked=True):
                return snapshot.snapshot_id
        return None

    def _ask(self, asked: Asked) -> None:
        assert self._parking is None, "a choice that is being parked is exported by nobody else"
        assert self.offered is None, "what no worker has is exported by none"
        self._state = asked
