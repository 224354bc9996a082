"""What the event loop tells the engine thread of a decode worker, as plain values.

A request's sender may be called more than once (CallAgain). `call` says which call speaks, so that a late word of an
earlier one is not taken for the current one's; 0 is the first.
"""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from decode_service.snapshots.commands import SnapshotDone, WriteSnapshot
from decode_service.snapshots.restoring import Restored
from kv_transfer.sender_words import Granted, Unpin, Unwanted
from segue.engine_facts import EngineStatus
from segue.errors import ServingError
from segue.handoff import Ask, BlockBytes, CheckpointPushed, Finished, Progress, Ticket
from segue.ids import Handle, WorkerId
from segue.wire import Cancel, Finish, GenerateSpec, SnapshotFigures, Transfers


@dataclass(frozen=True, slots=True)
class Submit:
    """Take a request, `restored` if it goes on from a snapshot.

    `accepted` ends with whether its prefill worker is to be called, or with what refused it.
    """

    spec: GenerateSpec
    handle: Handle
    restored: Restored | None = None
    accepted: Future[bool] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Report:
    """Say how load and pools are."""

    answer: Future["WorkerFigures"] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Depart:
    """The request is to go on at another worker, as soon as its whole state is here."""

    handle: Handle
    attempt: int


@dataclass(frozen=True, slots=True)
class Collect:
    """A worker comes for the state of a request that has left; `accepted` ends with None, or with what refused it."""

    handle: Handle
    attempt: int
    spec: GenerateSpec
    accepted: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Fail:
    """The request cannot go on."""

    handle: Handle
    attempt: int
    error: ServingError
    call: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """The sender of a request's state wants a promise of room."""

    handle: Handle
    attempt: int
    peer: WorkerId
    tp_size: int
    ask: Ask
    call: int = 0


@dataclass(frozen=True, slots=True)
class Progressed:
    """A sign of life of a sender."""

    handle: Handle
    attempt: int
    progress: Progress


@dataclass(frozen=True, slots=True)
class Bytes:
    """State that came as a message; `written` ends when it is in place, or with why it cannot be."""

    message: BlockBytes
    written: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Arrived:
    """A sender says that the state is complete, or that there is none to send because the output ends at once."""

    handle: Handle
    attempt: int
    finished: Finished
    call: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointArrived:
    """A sender says that the prompt checkpoint is complete."""

    handle: Handle
    attempt: int
    pushed: CheckpointPushed
    call: int = 0


@dataclass(frozen=True, slots=True)
class SettledTicket:
    """Nothing is written under the ticket, and nothing ever will be."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class PeerDied:
    """A peer's process is proven gone."""

    peer: WorkerId


@dataclass(frozen=True, slots=True)
class WorkerFigures:
    """The engine's own figures, and those of what came to it and of its snapshots."""

    engine: EngineStatus
    transfers: Transfers
    snapshots: SnapshotFigures


Command: TypeAlias = (
    Submit
    | Cancel
    | Finish
    | Report
    | Fail
    | Asked
    | Progressed
    | Bytes
    | Arrived
    | CheckpointArrived
    | SettledTicket
    | PeerDied
    | WriteSnapshot
    | SnapshotDone
    | Depart
    | Collect
    | Granted
    | Unwanted
    | Unpin
)
