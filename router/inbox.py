"""Tokens of one attempt of one choice on their way from the session to the request's task; never loses one silently."""

import asyncio
from dataclasses import dataclass, field

from segue.batch.request import FinishReason
from segue.errors import ServingError
from segue.ids import Handle
from segue.wire import Ended, Scores, Top


class TokenGap(ServingError):
    """A worker skipped a token or a score, or sent more than was asked for; the output cannot be trusted."""


@dataclass(slots=True)
class Arrivals:
    """What came since the last look. `logprobs` and `tops` are as long as `token_ids`, or empty when not asked for.

    A logprob is None where the snapshot that it comes from does not know it.

    `scores` are logprob and alternatives of the prompt's next tokens; they came before all of `token_ids`.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    ended: Ended | None = None
    scores: list[tuple[float, Top]] = field(default_factory=list)


class Inbox:
    """Written by the session, read by one task. It is bounded by the choice's own budget of tokens.

    `next_index` is the first output index not seen; earlier ones are ignored, a later one is a TokenGap. The same goes
    for `next_position`, of the prompt's scores; all up to `position_limit` come before the first token. While it is
    `held`, everything stays in it; only that time is up is told all the same.
    """

    __slots__ = (
        "_arrived",
        "_failure",
        "_overdue",
        "_settling",
        "_waiter",
        "attempt",
        "finishing",
        "handle",
        "held",
        "index_limit",
        "next_index",
        "next_position",
        "position_limit",
    )

    def __init__(
        self, attempt: int, next_index: int, index_limit: int, next_position: int = 0, position_limit: int = 0
    ) -> None:
        self.handle = Handle(-1)
        self.attempt = attempt
        self.next_index = next_index
        self.index_limit = index_limit
        self.next_position = next_position
        self.position_limit = position_limit
        self.finishing = False
        self.held = False
        self._arrived = Arrivals()
        self._failure: ServingError | None = None
        self._overdue = False
        self._waiter: asyncio.Future[None] | None = None
        self._settling: asyncio.Future[None] | None = None

    def put_scores(self, scores: Scores) -> None:
        """Scores of the prompt. Raises TokenGap when they do not go on where the last ones ended."""
        seen = self.next_position - scores.first
        if seen < 0:
            raise TokenGap(f"the worker sent the score of position {scores.first} when {self.next_position} was next")
        if scores.stop > self.position_limit:
            raise TokenGap(f"the worker sent scores up to {scores.stop}, those before {self.position_limit} were asked")
        if seen < len(scores.logprobs):
            self._arrived.scores += zip(scores.logprobs[seen:], scores.tops[seen:], strict=True)
            self.next_position = scores.stop

    def put(self, index: int, token_id: int, logprob: float | None, top: Top | None) -> None:
        """One token. Raises TokenGap when `index` is not the next one."""
        if index < self.next_index:
            return
        if index > self.next_index:
            raise TokenGap(f"the worker sent output index {index} when {self.next_index} was next")
        if self.next_position < self.position_limit:
            raise TokenGap(f"the worker sent a token before the score of position {self.next_position}")
        if index >= self.index_limit:
            raise TokenGap(f"the worker sent output index {index}, only {self.index_limit} tokens were asked for")
        self.next_index = index + 1
        arrived = self._arrived
        arrived.token_ids.append(token_id)
        if logprob is not None:
            arrived.logprobs.append(logprob)
            arrived.tops.append(top or ())

    def end(self, ended: Ended) -> None:
        """The attempt is over. Raises TokenGap when the worker counts tokens that never came."""
        by_itself = ended.reason in (FinishReason.STOP, FinishReason.LENGTH) and not self.finishing
        if by_itself and ended.usage.completion_tokens > self.next_index:
            raise TokenGap(f"the worker counts {ended.usage.completion_tokens} output tokens, {self.next_index} came")
        if by_itself and self.next_position < self.position_limit:
            raise TokenGap(f"the worker ended without the score of position {self.next_position}")
        self._arrived.ended = ended
        self.wake()

    def fail(self, error: ServingError) -> None:
        """The attempt is lost; what arrived before is still handed over first."""
        if self._failure is None:
            self._failure = error
        self.wake()

    def expire(self, error: ServingError) -> None:
        """Time is up: the reader is told so even while this is held, and what is held stays."""
        if self.held:
            self._failure, self._overdue = error, True
        self.fail(error)

    def wake(self) -> None:
        """Lets the reader look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self._settling is not None and self.settled and not self._settling.done():
            self._settling.set_result(None)

    @property
    def settled(self) -> bool:
        """Whether the attempt is over, one way or the other, and the reader does not know it yet."""
        return self._arrived.ended is not None or self._failure is not None

    async def settle(self, timeout_s: float) -> None:
        """Returns when the attempt is over, or after `timeout_s`. For one at a time, who holds the inbox."""
        assert self.held, "what is not held may be taken away at any time"
        self._settling = asyncio.get_running_loop().create_future()
        self.wake()
        await asyncio.wait((self._settling,), timeout=timeout_s)
        self._settling = None

    def leave(self, snapshot_id: str) -> None:
        """The snapshot has the choice now, whether or not its worker gets to say so."""
        if self._arrived.ended is None:
            self._arrived.ended = Ended(self.handle, self.attempt, FinishReason.MOVED, snapshot_id=snapshot_id)

    def release(self) -> None:
        """What was held may be taken."""
        self.held = False
        self.wake()

    async def take(self) -> Arrivals:
        """What arrived, at least something. Raises the attempt's failure once nothing else is left."""
        while self.held or self._nothing_arrived:
            if self._failure is not None and (self._overdue or not self.held):
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, Arrivals()
        return arrived

    @property
    def _nothing_arrived(self) -> bool:
        arrived = self._arrived
        return not arrived.token_ids and not arrived.scores and arrived.ended is None
