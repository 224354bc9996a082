"""Sorts the news of a session's steps into inboxes by handle; knows nothing of streams.

Tokens may arrive before the answer to the call that asked for them: while such an answer is awaited, news of unknown
handles are kept for it. All other unknown handles are strays of given-up choices, and are cancelled once each.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from router.inbox import Inbox, TokenGap
from segue.errors import ServingError
from segue.ids import Handle
from segue.wire import Cancel, Ended, PromptScores, Resume, RouterMessage, Scores, StepNews, Top

_TOLD_MAX = 4096


@dataclass(slots=True)
class _Early:
    """News of a handle that nobody has claimed yet."""

    attempt: int
    scores: list[Scores] = field(default_factory=list)
    tokens: list[tuple[int, int, float | None, Top | None]] = field(default_factory=list)
    ended: Ended | None = None


class Mailroom:
    """The live choices of one session. `send` takes messages for the worker."""

    def __init__(self, send: Callable[[RouterMessage], None]) -> None:
        self.live: dict[int, Inbox] = {}
        self._send = send
        self._expected = 0
        self._early: dict[int, _Early] = {}
        # Handles whose end the worker has been told; news of theirs that were under way are dropped without a word.
        self._told: OrderedDict[int, None] = OrderedDict()

    def expect(self) -> None:
        """An answer that will name a handle is awaited; `expected` must follow."""
        self._expected += 1

    def expected(self) -> None:
        """The answer came, or will not. With the last one, early news that nobody claimed are strays."""
        self._expected -= 1
        assert self._expected >= 0, "more answers came than were awaited"
        if self._expected == 0:
            early, self._early = self._early, {}
            for handle, news in early.items():
                if news.ended is None:
                    self.drop(Handle(handle), news.attempt)

    def open(self, handle: Handle, inbox: Inbox) -> None:
        """The worker accepted a choice. News that came before the answer are delivered now."""
        assert handle not in self.live, f"the worker gave handle {handle} to two live choices"
        inbox.handle = handle
        self.live[handle] = inbox
        early = self._early.pop(handle, None)
        if early is None:
            return
        for scores in early.scores:
            self._put_scores(inbox, early.attempt, scores)
        for index, token_id, logprob, top in early.tokens:
            self._put(inbox, early.attempt, index, token_id, logprob, top)
        if early.ended is not None:
            self._end(early.ended)
        inbox.wake()

    def holds(self, inbox: Inbox) -> bool:
        return self.live.get(inbox.handle) is inbox

    def close(self, inbox: Inbox) -> None:
        """The choice is given up: the worker is told, unless it was not live."""
        if self.holds(inbox):
            del self.live[inbox.handle]
            self.drop(inbox.handle, inbox.attempt)

    def drop(self, handle: Handle, attempt: int) -> None:
        """Tells the worker once that nobody waits for `handle`."""
        self._early.pop(handle, None)
        if handle not in self._told:
            self._told[handle] = None
            if len(self._told) > _TOLD_MAX:
                self._told.popitem(last=False)
            self._send(Cancel(handle, attempt))

    def resume(self) -> tuple[Resume, ...]:
        """The live choices, as a re-attachment names them; it ends all others, so early and told ones are forgotten."""
        self._early.clear()
        self._told.clear()
        return tuple(Resume(box.handle, box.attempt, box.next_index, box.next_position) for box in self.live.values())

    def lose(self, handle: Handle, error: ServingError) -> None:
        """The worker does not hold the choice any more."""
        inbox = self.live.pop(handle, None)
        if inbox is not None:
            inbox.fail(error)

    def lose_all(self, error: ServingError) -> None:
        lost, self.live = self.live, {}
        self._early.clear()
        self._told.clear()
        for inbox in lost.values():
            inbox.fail(error)

    def deliver(self, news: StepNews) -> None:
        """Hands a step's scores, tokens and ends to their inboxes and wakes each reader once."""
        live = self.live
        logprobs = news.logprobs
        tops = news.tops
        touched: dict[int, Inbox] = {}
        for of in news.scores:
            if (inbox := live.get(of.handle)) is None:
                self._unknown_scores(of)
            else:
                touched[of.handle] = inbox
                self._put_scores(inbox, of.attempt, of.scores)
        attempts, indices, token_ids = news.attempts, news.indices, news.token_ids
        for i, handle in enumerate(news.handles):
            logprob = logprobs[i] if logprobs else None
            top = tops[i] if tops else None
            inbox = live.get(handle)
            if inbox is None:
                self._unknown(handle, attempts[i], (indices[i], token_ids[i], logprob, top))
            else:
                touched[handle] = inbox
                self._put(inbox, attempts[i], indices[i], token_ids[i], logprob, top)
        for ended in news.ended:
            self._end(ended)
        for inbox in touched.values():
            inbox.wake()

    def _put_scores(self, inbox: Inbox, attempt: int, scores: Scores) -> None:
        if attempt != inbox.attempt:
            return
        try:
            inbox.put_scores(scores)
        except TokenGap as gap:
            self.close(inbox)
            inbox.fail(gap)

    def _put(
        self, inbox: Inbox, attempt: int, index: int, token_id: int, logprob: float | None, top: Top | None
    ) -> None:
        # News of an older try of the same choice mean nothing to this one.
        if attempt != inbox.attempt:
            return
        try:
            inbox.put(index, token_id, logprob, top)
        except TokenGap as gap:
            self.close(inbox)
            inbox.fail(gap)

    def _end(self, ended: Ended) -> None:
        self._told.pop(ended.handle, None)
        inbox = self.live.get(ended.handle)
        if inbox is None:
            early = self._early.get(ended.handle)
            if early is not None:
                early.ended = ended
            elif self._expected:
                self._early[ended.handle] = _Early(ended.attempt, ended=ended)
            return
        if ended.attempt != inbox.attempt:
            return
        del self.live[ended.handle]
        try:
            inbox.end(ended)
        except TokenGap as gap:
            inbox.fail(gap)

    def _unknown(self, handle: int, attempt: int, token: tuple[int, int, float | None, Top | None]) -> None:
        if (early := self._early_of(handle, attempt)) is not None:
            early.tokens.append(token)

    def _unknown_scores(self, of: PromptScores) -> None:
        if (early := self._early_of(of.handle, of.attempt)) is not None:
            early.scores.append(of.scores)

    def _early_of(self, handle: int, attempt: int) -> _Early | None:
        """Where early news of a handle are kept; of a stray, which nobody awaits, the worker is told."""
        if handle in self._told:
            return None
        if self._expected:
            return self._early.setdefault(handle, _Early(attempt))
        self.drop(Handle(handle), attempt)
        return None
