"""What the outside tells the engine thread of snapshots, as plain values."""

from concurrent.futures import Future
from dataclasses import dataclass, field

from decode_service.snapshots.writing import Written
from segue.ids import Handle
from segue.state.snapshot.fields import JsonObject


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Write the whole state of a request; with `copy` it runs on. `about` is the router's."""

    handle: Handle
    attempt: int
    copy: bool
    served: int
    about: JsonObject
    answer: "Future[Written]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class SnapshotDone:
    """What was asked for is durable, or has failed."""

    asked: TakeSnapshot
    written: Written | None
    error: BaseException | None
