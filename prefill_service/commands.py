"""What the event loop and the engine thread of a prefill worker tell each other, as plain values."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeAlias

from kv_transfer.plan import TransferPlan
from segue.batch.news import Ended, Usage
from segue.batch.request import EmittedToken, FinishReason
from segue.batch.submission import GenerateSpec
from segue.engine_facts import EngineStatus
from segue.handoff import StateDigest, UnitRow
from segue.ids import Handle, WorkerId


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue a prompt; `accepted` ends with None, or with the ServingError that refused it."""

    receiver: WorkerId
    spec: GenerateSpec
    handle: Handle
    accepted: Future[None] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Granted:
    """The receiver has promised room; the state travels by `plan`."""

    handle: Handle
    attempt: int
    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nobody wants the prompt any more."""

    handle: Handle
    attempt: int


@dataclass(frozen=True, slots=True)
class Unpin:
    """No write reads the request's pages any more."""

    handle: Handle


@dataclass(frozen=True, slots=True)
class Report:
    """Say how load and pools are."""

    answer: Future[EngineStatus] = field(default_factory=Future)


Command: TypeAlias = Submit | Granted | Cancel | Unpin | Report


@dataclass(frozen=True, slots=True)
class Due:
    """The prompt's turn is near: ask its receiver."""

    handle: Handle
    prompt_tokens: int
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Positions [computed, now) are complete in memory; what travels now lies in `rows`."""

    handle: Handle
    computed: int
    now: int
    rows: Sequence[UnitRow]


@dataclass(frozen=True, slots=True)
class PromptCheckpoint:
    """The state after `depth` tokens of a prompt: the units in which it lies, and its digests."""

    depth: int
    rows: Sequence[UnitRow]
    digests: tuple[StateDigest, ...]


@dataclass(frozen=True, slots=True)
class Complete:
    """The prompt is computed and all its state is among the chunks before; this is its first token.

    `checkpoint` is what follows for the receiver's cache, None when there is nothing.
    """

    handle: Handle
    token: EmittedToken
    usage: Usage
    digests: tuple[StateDigest, ...]
    checkpoint: PromptCheckpoint | None


@dataclass(frozen=True, slots=True)
class Last:
    """The first token ends the output: nothing is handed over."""

    handle: Handle
    token: EmittedToken
    reason: FinishReason
    usage: Usage


PrefillEvent: TypeAlias = Due | Chunk | Complete | Last | Ended
