"""What the outside tells the engine thread of snapshots, as plain values."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from decode_service.snapshots.writing import Written
from segue.ids import Handle
from segue.state.snapshot.fields import JsonObject
from segue.state.snapshot.manifest import SnapshotKind
from segue.wire import TakeSnapshot


@dataclass(frozen=True, slots=True)
class WriteSnapshot:
    """Write the whole state of a request, which runs on unless it is exported or parked. `about` is the router's.

    The snapshot is called `snapshot_id`, which whoever wants it has drawn.
    """

    handle: Handle
    attempt: int
    kind: SnapshotKind
    served: int
    about: JsonObject
    snapshot_id: str
    answer: "Future[Written]" = field(default_factory=Future)

    @staticmethod
    def of(asked: TakeSnapshot, about: JsonObject) -> "WriteSnapshot":
        """What a router asks for; `about` is what it says of the request."""
        given_up: SnapshotKind = "parked" if asked.parked else "export"
        kind = "copy" if asked.copy else given_up
        return WriteSnapshot(asked.handle, asked.attempt, kind, asked.served, about, asked.snapshot_id)

    @property
    def copy(self) -> bool:
        """Whether the request runs on."""
        return self.kind in ("copy", "periodic")


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    """What was asked for is durable, or has failed."""

    asked: WriteSnapshot
    written: Written | None
    error: BaseException | None
