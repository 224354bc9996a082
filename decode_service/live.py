"""One request choice as its router sees it: all its output so far, and how much of it was sent; schedules nothing."""

from collections.abc import Iterator

from segue.batch.scores import Scores, Top
from segue.errors import InvalidRequest
from segue.ids import Handle, RequestId, RouterId
from segue.tokens import EmittedToken
from segue.wire import Ended, GenerateSpec


class LiveRequest:
    """Output is kept from the first token until the end is forgotten, so any part can be sent again.

    `sent` is the absolute output index that is sent next; output before `first` came with the request (a continuation).
    The same for scores of the prompt, by position: `scores_sent` and `scores_first`, 0 where the prompt is not scored.
    `accepted` is set when the engine has taken it, `leaving` when it was told to let go of it, `departing` when it is
    to go on at another worker.
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
        self.scores_first = self.scores_sent = 0 if spec.score_from is None else spec.score_from + 1
        self._logprobs: list[float] = []
        self._tops: list[Top] = []
        self.ended: Ended | None = None
        self.end_sent = False
        self.accepted = False
        self.leaving = False
        self.departing = False

    @property
    def key(self) -> tuple[RouterId, RequestId, int]:
        """What the router calls it; attempts of one choice share it."""
        return self.router_id, self.request_id, self.choice

    @property
    def known(self) -> int:
        """Absolute output length so far."""
        return self.first + len(self.tokens)

    @property
    def scores_known(self) -> int:
        """The position behind the last score so far."""
        return self.scores_first + len(self._logprobs)

    @property
    def news(self) -> bool:
        """Whether anything has come of it."""
        return bool(self.tokens or self._logprobs) or self.ended is not None

    @property
    def scores_left(self) -> bool:
        """Whether scores are to be sent before anything else."""
        return not self.leaving and self.scores_sent < self.scores_known

    def push_scores(self, scores: Scores) -> None:
        """The engine's next scores."""
        assert scores.first == self.scores_known, (
            f"request {self.request_id}: scores from {scores.first} came where {self.scores_known} was due"
        )
        assert not self.tokens, f"request {self.request_id}: scores came after a token"
        self._logprobs += scores.logprobs
        self._tops += scores.tops

    def push(self, index: int, token: EmittedToken) -> None:
        """The engine's next token."""
        assert index == self.known, f"request {self.request_id}: token {index} came where {self.known} was due"
        assert self.ended is None, f"request {self.request_id}: a token came after the end"
        self.tokens.append(token)

    def end(self, ended: Ended) -> None:
        """The engine's last word."""
        assert self.ended is None, f"request {self.request_id} ended twice"
        self.ended = ended

    def require_place(self, next_index: int, next_position: int) -> None:
        """Raises InvalidRequest when there is no such output index or score, and will not be as the next."""
        if not self.scores_first <= next_position <= self.scores_known:
            raise InvalidRequest(
                f"request {self.request_id} has scores [{self.scores_first}, {self.scores_known}), it cannot resume at "
                f"{next_position}"
            )
        if not self.first <= next_index <= self.known:
            raise InvalidRequest(
                f"request {self.request_id} has output [{self.first}, {self.known}), it cannot resume at {next_index}"
            )

    def rewind(self, next_index: int, next_position: int) -> None:
        """Counts only what precedes these as sent."""
        self.require_place(next_index, next_position)
        self.sent, self.scores_sent = next_index, next_position
        self.end_sent = False

    def count_as_sent(self) -> None:
        """Nobody wants what is known so far."""
        self.sent, self.scores_sent, self.end_sent = self.known, self.scores_known, self.ended is not None

    def unsent_scores(self, numbers_max: int) -> Scores:
        """Scores that were not sent yet, at least one, about `numbers_max` numbers; they count as sent from here on."""
        start = self.scores_sent - self.scores_first
        width = 1 + len(self._tops[start])
        stop = min(len(self._logprobs), start + max(1, numbers_max // width))
        scores = Scores(self.scores_sent, self._logprobs[start:stop], self._tops[start:stop])
        self.scores_sent = scores.stop
        return scores

    def unsent(self) -> Iterator[tuple[int, EmittedToken]]:
        """Output that was not sent yet, by absolute index; from here on it counts as sent.

        Of a request that its router let go of, nobody wants more.
        """
        start, self.sent = (self.known if self.leaving else self.sent), self.known
        return zip(range(start, self.sent), self.tokens[start - self.first :], strict=True)
