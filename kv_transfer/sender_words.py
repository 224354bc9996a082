"""What the event loop and the engine thread of a sender tell each other of one request, as plain values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kv_transfer.plan import TransferPlan
from segue.batch.news import Ended, Usage
from segue.batch.request import FinishReason
from segue.handoff import StateDigest, UnitRow
from segue.ids import Handle
from segue.tokens import EmittedToken


@dataclass(frozen=True, slots=True)
class Granted:
    """The receiver has promised room; the state travels by `plan`."""

    handle: Handle
    attempt: int
    plan: TransferPlan


@dataclass(frozen=True, slots=True)
class Unwanted:
    """The receiver does not want the state any more, or cannot be given it."""

    handle: Handle
    attempt: int


@dataclass(frozen=True, slots=True)
class Unpin:
    """No write reads the request's pages any more. `delivered`: the receiver was told that all of it has come."""

    handle: Handle
    delivered: bool


SenderCommand: TypeAlias = Granted | Unwanted | Unpin


@dataclass(frozen=True, slots=True)
class Due:
    """The request's turn is near: ask its receiver for room for so many tokens."""

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
    """All of the state is among the chunks before; this is the token that follows it.

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


SenderEvent: TypeAlias = Due | Chunk | Complete | Last | Ended
