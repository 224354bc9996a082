"""One request choice on a worker: its tokens, parameters, what it owns and how far it is; decides nothing."""

from array import array
from dataclasses import dataclass, field, replace
from enum import StrEnum

from segue.batch.lifecycle import Phase, move
from segue.batch.sampling import SamplingParams
from segue.batch.submission import GenerateSpec
from segue.cache.keys import PageKeys
from segue.cache.lease import Lease
from segue.ids import Handle, RequestId
from segue.state.tables import StateTables
from segue.tokens import EmittedToken, token_array


class FinishReason(StrEnum):
    """Why an output ended, in OpenAI's words where they exist."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    MOVED = "moved"
    """The request's whole state has left its worker, or is about to: the output goes on elsewhere."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Request:
    """A live request choice. Mutable, owned by the engine thread alone.

    `prompt` ends where output begins (sampling positions, penalties and budgets count from there), also for a
    continuation, whose already emitted tokens stand in `output` from the start. `computed` is c of STATE.md: positions
    [0, c) are complete. `cached_tokens` are prompt tokens whose state was reused, wherever the prompt was computed.
    `lease` and `keys` are its use of the prefix tree; extending pauses at `stops` for a checkpoint, and `expected` is
    the depth of one that is still on its way from another worker.
    `came_at` is the depth at which its state came from another worker that may have had no more than a state needs.
    `pinned` means that its pages are being read outside of steps. `extension` is opaque and travels with the request.
    Requests of different `cache_salt` share nothing. With `score_from` prompt tokens behind that position are scored.
    """

    handle: Handle
    request_id: RequestId
    attempt: int
    prompt: "array[int]"
    sampling: SamplingParams
    priority: int = 0
    deadline: float | None = None
    extension: bytes = b""
    cache_salt: str = ""
    score_from: int | None = None
    output: list[EmittedToken] = field(default_factory=list)
    computed: int = 0
    came_at: int | None = None
    cached_tokens: int = 0
    pinned: bool = False
    arrival: float = 0.0
    tables: StateTables | None = None
    lease: Lease | None = None
    keys: PageKeys | None = None
    stops: set[int] = field(default_factory=set)
    expected: int | None = None
    origin: GenerateSpec | None = None
    recallable: bool = False
    """Another worker can be asked for its state, where more than `extend_max` tokens are missing here."""
    extend_max: int = 0
    retractions: int = 0
    resumed: bool = False
    """Runs on a state that came back from host memory."""
    deepest: int = 0
    """How far it had been computed when it was last taken off the device."""
    overtaken: bool = False
    """A step that was in flight when it ended has moved its slot past `computed`."""
    phase: Phase = Phase.WAITING

    @staticmethod
    def of(spec: GenerateSpec, handle: Handle, now: float) -> "Request":
        """The request that `spec` asks for, at `now` of the engine's clock.

        The last token of one that was moved comes with its state, as any sender's token does.
        """
        emitted = spec.emitted if spec.moved is None else spec.emitted[:-1]
        return Request(
            handle=handle,
            request_id=spec.request_id,
            attempt=spec.attempt,
            prompt=token_array(spec.prompt),
            sampling=spec.sampling,
            priority=spec.priority,
            deadline=None if spec.deadline_s is None else now + spec.deadline_s,
            extension=spec.extension,
            cache_salt=spec.cache_salt,
            score_from=spec.score_from,
            output=[EmittedToken(token, None) for token in emitted],
            came_at=None if spec.moved is None else len(spec.prompt) + len(emitted),
            arrival=now,
            origin=spec,
            phase=Phase.WAITING if spec.moved is None else Phase.AWAITING,
        )

    def asked_again(self, now: float) -> GenerateSpec:
        """What another worker is asked for, so that its state and token follow all that is known."""
        assert self.origin is not None
        left_s = None if self.deadline is None else max(0.0, self.deadline - now)
        return replace(self.origin, emitted=tuple(token.token_id for token in self.output), deadline_s=left_s)

    @property
    def moved(self) -> bool:
        """Whether its state comes, or came, from the worker on which it ran before."""
        return self.origin is not None and self.origin.moved is not None

    def window_from(self, window: int | None) -> int:
        """The first position whose keys its window pages are sure to have."""
        return 0 if window is None or self.came_at is None else max(0, self.came_at - window)

    @property
    def prompt_len(self) -> int:
        return len(self.prompt)

    @property
    def known_len(self) -> int:
        """Prompt and output tokens, the pending one included."""
        return len(self.prompt) + len(self.output)

    @property
    def max_len(self) -> int:
        """Known length when the output budget is used up."""
        return len(self.prompt) + self.sampling.max_tokens

    @property
    def reusable_max(self) -> int:
        """How many positions may be reused: one token at least is computed, and all that scores are read from."""
        last = self.known_len - 1
        return last if self.score_from is None else min(last, self.score_from)

    @property
    def stands_whole(self) -> bool:
        """Whether its whole state is on the device between two steps, and nobody reads or awaits a part of it."""
        return self.phase is Phase.DECODING and not self.pinned

    @property
    def ends_with_prompt(self) -> bool:
        """Whether no output is wanted."""
        return self.sampling.max_tokens == 0

    def scored(self, start: int, stop: int) -> range:
        """The positions in [start, stop) whose logits give the score of the prompt token behind them."""
        if self.score_from is None:
            return range(0)
        return range(max(start, self.score_from), min(stop, len(self.prompt) - 1))

    def token_at(self, position: int) -> int:
        """The token at an absolute position of prompt and output."""
        if position < len(self.prompt):
            return self.prompt[position]
        return self.output[position - len(self.prompt)].token_id

    def tokens(self, start: int, stop: int) -> list[int]:
        """Tokens at positions [start, stop)."""
        return self._known(start, stop).tolist()

    def token_bytes(self, start: int, stop: int) -> bytes:
        """The same as bytes."""
        return self._known(start, stop).tobytes()

    def _known(self, start: int, stop: int) -> "array[int]":
        split = len(self.prompt)
        known = self.prompt[start:stop]
        if stop > split:
            known.extend([token.token_id for token in self.output[max(0, start - split) : stop - split]])
        assert len(known) == stop - start, f"request {self.request_id} has no tokens up to {stop}"
        return known

    def move(self, phase: Phase) -> None:
        """Goes to `phase`, if the table of moves allows it."""
        self.phase = move(self.phase, phase)
