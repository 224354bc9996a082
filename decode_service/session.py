"""One router's requests on this worker and what it was not told yet; outlives the streams that carry it.

A slow router costs nothing but the merging of its news: what is pending is a set of requests, not a queue of messages.
"""

import asyncio
from collections.abc import Sequence

from decode_service.live import LiveRequest
from segue.ids import Handle, RouterId
from segue.wire import Ended, PromptScores, Resume, StepNews, Top

# Bounds a message: scores of a long prompt are many times what a step's tokens are.
SCORE_NUMBERS_MAX = 16384


class Session:
    """Event-loop thread only. `news` is set whenever `take` would have something.

    Its router has said whether requests could go on `elsewhere`, with their state.
    """

    def __init__(self, router_id: RouterId) -> None:
        self.router_id = router_id
        self.requests: dict[Handle, LiveRequest] = {}
        self.news = asyncio.Event()
        self.elsewhere = False
        self._changed: dict[Handle, LiveRequest] = {}
        self._step = 0

    @property
    def live(self) -> list[LiveRequest]:
        """Requests that have not ended."""
        return [request for request in self.requests.values() if request.ended is None]

    def mark(self, request: LiveRequest, step: int) -> None:
        """Something new is known of `request`. It is told only once the router has been told the handle."""
        self._step = max(self._step, step)
        if request.accepted:
            self._changed[request.handle] = request
            self.news.set()

    def take(self) -> StepNews | None:
        """Everything the router was not told yet, as one message; None when that is nothing.

        Of scores only so many go into one message; the rest of their request follows in the next.
        """
        changed, self._changed = self._changed, {}
        self.news.clear()
        handles: list[int] = []
        attempts: list[int] = []
        indices: list[int] = []
        token_ids: list[int] = []
        logprobs: list[float] = []
        tops: list[Top] = []
        ended: list[Ended] = []
        scores: list[PromptScores] = []
        room = SCORE_NUMBERS_MAX
        for handle, request in changed.items():
            if request.scores_left and room > 0:
                part = request.unsent_scores(room)
                scores.append(PromptScores(handle, request.attempt, part))
                room -= len(part.logprobs) * (1 + len(part.tops[0]))
            if request.scores_left:
                self._changed[handle] = request
                self.news.set()
                continue
            for index, token in request.unsent():
                handles.append(handle)
                attempts.append(request.attempt)
                indices.append(index)
                token_ids.append(token.token_id)
                assert token.logprob is not None or not request.wants_logprobs, "what is told of a token is known"
                logprobs.append(0.0 if token.logprob is None else token.logprob)
                tops.append(token.top)
            if request.ended is not None and not request.end_sent:
                ended.append(request.ended)
                request.end_sent = True
        if not handles and not ended and not scores:
            return None
        asked = changed.values()
        return StepNews(
            self._step,
            handles,
            attempts,
            indices,
            token_ids,
            logprobs if any(request.wants_logprobs for request in asked) else (),
            tops if any(request.wants_tops for request in asked) else (),
            ended,
            scores,
        )

    def resume(self, wanted: Sequence[Resume]) -> tuple[tuple[Handle, ...], list[LiveRequest]]:
        """Re-attaches: what `wanted` names is sent again from there. Returns unknown handles, and live ones not named.

        Raises InvalidRequest when that lies outside what is known of a request, and then changes nothing.
        """
        found = {r.handle: r for r in wanted if self._holds(r)}
        for handle, resume in found.items():
            self.requests[handle].require_place(resume.next_index, resume.next_position)
        for handle, resume in found.items():
            self.requests[handle].rewind(resume.next_index, resume.next_position)
        # A request whose acceptance is still under way is not named because the router cannot know its handle yet.
        unnamed = [r for handle, r in self.requests.items() if handle not in found and r.accepted]
        for request in unnamed:
            request.count_as_sent()
            self._changed.pop(request.handle, None)
        self._changed |= {handle: self.requests[handle] for handle in found}
        if self._changed:
            self.news.set()
        return tuple(r.handle for r in wanted if r.handle not in found), [r for r in unnamed if r.ended is None]

    def _holds(self, resume: Resume) -> bool:
        request = self.requests.get(resume.handle)
        return request is not None and request.attempt == resume.attempt
