"""All live requests of a worker, by handle and by what routers call them; knows nothing of streams or the engine."""

from collections import deque
from collections.abc import Callable

from decode_service.live import LiveRequest
from decode_service.session import Session
from segue.batch.news import EngineNews
from segue.batch.request import FinishReason
from segue.errors import DuplicateRequest
from segue.ids import Handle, RequestId, RouterId
from segue.wire import Cancel, Ended, Finish, GenerateSpec

HANDLE_LIMIT = 2**32


class Ledger:
    """Requests from the moment they are offered to the engine until their end is forgotten. Event-loop thread only.

    An ended request stays for `remember_s` (at most `remembered_max` of them), because its router may not have received
    the end before its stream broke.
    """

    def __init__(self, *, remember_s: float, remembered_max: int, clock: Callable[[], float]) -> None:
        self._remember_s = remember_s
        self._remembered_max = remembered_max
        self._clock = clock
        self._sessions: dict[RouterId, Session] = {}
        self._requests: dict[Handle, LiveRequest] = {}
        self._live: dict[tuple[RouterId, RequestId, int], LiveRequest] = {}
        self._ended: deque[tuple[float, LiveRequest]] = deque()
        self._next_handle = 1

    @property
    def live(self) -> tuple[LiveRequest, ...]:
        """Requests that have not ended."""
        return tuple(request for request in self._requests.values() if request.ended is None)

    def session(self, router_id: RouterId) -> Session | None:
        """The router's session, if it attached once and was not forgotten."""
        return self._sessions.get(router_id)

    def open_session(self, router_id: RouterId) -> Session:
        """The router's session, new if need be."""
        return self._sessions.setdefault(router_id, Session(router_id))

    def close_session(self, session: Session) -> None:
        """Forgets a router. Its live requests stay known until the engine has ended them."""
        del self._sessions[session.router_id]

    def open(self, session: Session, spec: GenerateSpec) -> tuple[LiveRequest, LiveRequest | None]:
        """Enters a request under a new handle. Also returns the older attempt of the same choice that it replaces.

        Raises DuplicateRequest when this attempt, or a newer one, is live.
        """
        self._forget()
        request = LiveRequest(spec, self._handle())
        older = self._live.get(request.key)
        if older is not None and older.attempt >= request.attempt:
            raise DuplicateRequest(
                f"attempt {older.attempt} of choice {older.choice} of request {older.request_id} is live here already"
            )
        self._live[request.key] = request
        self._requests[request.handle] = request
        session.requests[request.handle] = request
        return request, older

    def find(self, router_id: RouterId, handle: Handle, attempt: int) -> LiveRequest | None:
        """What a router calls by that handle, if it is known and of that attempt."""
        request = self._requests.get(handle)
        if request is None or (request.router_id, request.attempt) != (router_id, attempt):
            return None
        return request

    def accept(self, request: LiveRequest) -> None:
        """The engine took it; its router is being told the handle, so that it may be told news from now on."""
        request.accepted = True
        if request.news:
            self._mark(request, 0)

    def refuse(self, request: LiveRequest) -> None:
        """Takes a request out that the engine did not take."""
        assert not request.accepted, f"request {request.request_id} was accepted"
        self._retire(request)
        self._drop(request)

    def leave(self, message: Cancel | Finish) -> bool:
        """Whether the engine must be told: true once of a live request, or one whose state may still be kept."""
        request = self._requests.get(message.handle)
        if request is None or request.attempt != message.attempt or request.leaving:
            return False
        if request.ended is not None and request.ended.reason is not FinishReason.MOVED:
            return False
        request.leaving = True
        return True

    def apply(self, news: EngineNews) -> None:
        """Enters what a step brought and marks it for sending."""
        for of in news.scores:
            request = self._known(of.handle)
            assert request.attempt == of.attempt, f"handle {of.handle} is attempt {request.attempt}, not {of.attempt}"
            request.push_scores(of.scores)
            self._mark(request, news.step)
        for handle, attempt, index, token in zip(news.handles, news.attempts, news.indices, news.tokens, strict=True):
            request = self._known(handle)
            assert request.attempt == attempt, f"handle {handle} is attempt {request.attempt}, not {attempt}"
            request.push(index, token)
            self._mark(request, news.step)
        for ended in news.ended:
            self.end(ended, news.step)

    def end(self, ended: Ended, step: int = 0) -> None:
        """Enters an end and remembers the request for a while."""
        request = self._known(ended.handle)
        request.end(ended)
        self._retire(request)
        self._ended.append((self._clock() + self._remember_s, request))
        self._mark(request, step)
        self._forget()

    def _handle(self) -> Handle:
        while Handle(self._next_handle) in self._requests:
            self._next_handle = self._next_handle % (HANDLE_LIMIT - 1) + 1
        handle = Handle(self._next_handle)
        self._next_handle = self._next_handle % (HANDLE_LIMIT - 1) + 1
        return handle

    def _known(self, handle: Handle) -> LiveRequest:
        assert handle in self._requests, f"the engine speaks of handle {handle}, which nobody was given"
        return self._requests[handle]

    def _mark(self, request: LiveRequest, step: int) -> None:
        session = self._sessions.get(request.router_id)
        if session is not None and request.handle in session.requests:
            session.mark(request, step)

    def _retire(self, request: LiveRequest) -> None:
        if self._live.get(request.key) is request:
            del self._live[request.key]

    def _forget(self) -> None:
        now = self._clock()
        while self._ended and (self._ended[0][0] <= now or len(self._ended) > self._remembered_max):
            self._drop(self._ended.popleft()[1])

    def _drop(self, request: LiveRequest) -> None:
        del self._requests[request.handle]
        if (session := self._sessions.get(request.router_id)) is not None:
            session.requests.pop(request.handle, None)
