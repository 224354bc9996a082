"""Tokens of one attempt of one choice on their way from the session to the request's task; never loses one silently."""

import asyncio
from dataclasses import dataclass, field

from segue.batch.request import FinishReason
from segue.errors import ServingError
from segue.ids import Handle
from segue.wire import Ended, Top


class TokenGap(ServingError):
    """A worker skipped an output token, or sent more than was asked for; the output cannot be trusted."""


@dataclass(slots=True)
class Arrivals:
    """What came since the last look. `logprobs` and `tops` are as long as `token_ids`, or empty when not asked for."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[Top] = field(default_factory=list)
    ended: Ended | None = None


class Inbox:
    """Written by the session, read by one task. It is bounded by the choice's own budget of tokens.

    `next_index` is the first output index not seen; earlier ones are ignored, a later one is a TokenGap.
    """

    __slots__ = ("_arrived", "_failure", "_waiter", "attempt", "finishing", "handle", "index_limit", "next_index")

    def __init__(self, attempt: int, next_index: int, index_limit: int) -> None:
        self.handle = Handle(-1)
        self.attempt = attempt
        self.next_index = next_index
        self.index_limit = index_limit
        self.finishing = False
        self._arrived = Arrivals()
        self._failure: ServingError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, index: int, token_id: int, logprob: float | None, top: Top | None) -> None:
        """One token. Raises TokenGap when `index` is not the next one."""
        if index < self.next_index:
            return
        if index > self.next_index:
            raise TokenGap(f"the worker sent output index {index} when {self.next_index} was next")
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
        self._arrived.ended = ended
        self.wake()

    def fail(self, error: ServingError) -> None:
        """The attempt is lost; what arrived before is still handed over first."""
        if self._failure is None:
            self._failure = error
        self.wake()

    def wake(self) -> None:
        """Lets the reader look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> Arrivals:
        """What arrived, at least one token or the end. Raises the attempt's failure once nothing else is left."""
        while not self._arrived.token_ids and self._arrived.ended is None:
            if self._failure is not None:
                raise self._failure
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        arrived, self._arrived = self._arrived, Arrivals()
        return arrived
