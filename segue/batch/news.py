"""What the engine tells the outside: new tokens in columns, and requests that ended; plain values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from segue.batch.request import FinishReason, Request
from segue.batch.scores import PromptScores
from segue.errors import ServingError
from segue.ids import Handle
from segue.tokens import EmittedToken


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice. `cached_tokens` are prompt tokens whose state was reused."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice that ended, after its last token; `error` is set exactly when the reason is ERROR.

    One that was MOVED goes on from the snapshot, or, without one, from the state that its worker still keeps.
    """

    handle: Handle
    attempt: int
    reason: FinishReason
    usage: Usage = Usage()
    error: ServingError | None = None
    snapshot_id: str = ""

    def __post_init__(self) -> None:
        assert not self.snapshot_id or self.reason is FinishReason.MOVED, "what did not move is in no snapshot"
        assert (self.error is not None) == (self.reason is FinishReason.ERROR), "an error reason carries an error"

    @staticmethod
    def of(request: Request, reason: FinishReason, error: ServingError | None = None, snapshot_id: str = "") -> "Ended":
        """The end of a request, with its usage so far."""
        usage = Usage(request.prompt_len, len(request.output), request.cached_tokens)
        return Ended(request.handle, request.attempt, reason, usage, error, snapshot_id)


@dataclass(slots=True)
class EngineNews:
    """New tokens of one step in columns (whose, which try, absolute output index, token), and choices that ended.

    `scores` are of prompts, and come before the first token of their request.
    """

    step: int
    handles: list[Handle] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    tokens: list[EmittedToken] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    scores: list[PromptScores] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not (self.handles or self.ended or self.scores)

    def add(self, handle: Handle, attempt: int, index: int, token: EmittedToken) -> None:
        """Appends one new token."""
        self.handles.append(handle)
        self.attempts.append(attempt)
        self.indices.append(index)
        self.tokens.append(token)

    def add_all(self, handle: Handle, attempt: int, first: int, tokens: Sequence[EmittedToken]) -> None:
        """Appends tokens of one output, from index `first` on."""
        for index, token in enumerate(tokens, first):
            self.add(handle, attempt, index, token)
