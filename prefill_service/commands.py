"""What the event loop tells the engine thread of a prefill worker, as plain values."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from kv_transfer.sender_words import SenderCommand
from segue.batch.submission import GenerateSpec
from segue.engine_facts import EngineStatus
from segue.ids import Handle, WorkerId


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a prompt; `accepted` ends with None, or with the ServingError that refused it."""

    receiver: WorkerId
    spec: GenerateSpec
    handle: Handle
    accepted: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Report:
    """Say how load and pools are."""

    answer: Future[EngineStatus] = field(default_factory=Future)


Command: TypeAlias = Submit | SenderCommand | Report
