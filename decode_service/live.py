"""One request choice as its router sees it: all its output so far, and how much of it was sent; schedules nothing."""

from collections.abc import Iterator

from segue.batch.request import EmittedToken
from segue.errors import InvalidRequest
from segue.ids import Handle, RequestId, RouterId
from segue.wire import Ended, GenerateSpec


class LiveRequest:
    """Output is kept from the first token until the end is forgotten, so any part can be sent again.

    `sent` is the absolute output index that is sent next; output before `first` came with the request (a continuation).
    `accepted` is set when the engine has taken it, `leaving` when it was told to let go of it.
    """

    def __init__(self, spec: GenerateSpec, handle: Handle) -> None:
        self.handle = handle
        self.attempt = spec.attempt
        self.router_id: RouterId = spec.router_id
        self.request_id: RequestId = spec.request_id
        self.choice = spec.sampling.choice
        self.prompt_count = len(spec.prompt)
        self.first = self.sent = len(spec.emitted)
        self.wants_logprobs = spec.sampling.logprobs is not None
        self.wants_tops = bool(spec.sampling.logprobs)
        self.tokens: list[EmittedToken] = []
        self.ended: Ended | None = None
        self.end_sent = False
        self.accepted = False
        self.leaving = False

    @property
    def key(self) -> tuple[RouterId, RequestId, int]:
        """What the router calls it; attempts of one choice share it."""
        return self.router_id, self.request_id, self.choice

    @property
    def known(self) -> int:
        """Absolute output length so far."""
        return self.first + len(self.tokens)

    def push(self, index: int, token: EmittedToken) -> None:
        """The engine's next token."""
        assert index == self.known, f"request {self.request_id}: token {index} came where {self.known} was due"
        assert self.ended is None, f"request {self.request_id}: a token came after the end"
        self.tokens.append(token)

    def end(self, ended: Ended) -> None:
        """The engine's last word."""
        assert self.ended is None, f"request {self.request_id} ended twice"
        self.ended = ended

    def require_index(self, next_index: int) -> None:
        """Raises InvalidRequest when the output has no such index, and will not have it as its next."""
        if not self.first <= next_index <= self.known:
            raise InvalidRequest(
                f"request {self.request_id} has output [{self.first}, {self.known}), it cannot resume at {next_index}"
            )

    def rewind(self, next_index: int) -> None:
        """Counts only what precedes `next_index` as sent."""
        self.require_index(next_index)
        self.sent = next_index
        self.end_sent = False

    def unsent(self) -> Iterator[tuple[int, EmittedToken]]:
        """Output that was not sent yet, by absolute index; from here on it counts as sent.

        Of a request that its router let go of, nobody wants more.
        """
        start, self.sent = (self.known if self.leaving else self.sent), self.known
        return zip(range(start, self.sent), self.tokens[start - self.first :], strict=True)
