"""The requests that this router serves now, by name, as a snapshot sees them; starts and ends none."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from router.choice import Choice, Sent
from router.openai.events import Endpoint, Heading
from router.openai.plan import PlannedChoice, TextOptions
from router.snapshots.about import About
from router.text.tokenizer import Tokenizer
from segue.errors import ErrorKind, ServingError
from segue.ids import RequestId


class RequestNotFound(ServingError):
    """No request of this name is live at this router."""

    kind = ErrorKind(404, "NOT_FOUND", "invalid_request_error", "request_not_found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A live request: how it is answered, and its choices as they were planned and as they are."""

    endpoint: Endpoint
    heading: Heading
    include_usage: bool
    text: TextOptions
    planned: Sequence[PlannedChoice]
    choices: Sequence[Choice]

    def about(self, choice: Choice) -> About:
        """What the rest of it would need, as things are now."""
        return About(
            endpoint=self.endpoint,
            heading=self.heading,
            include_usage=self.include_usage,
            text=self.text,
            sent=choice.sent,
        )


class RunningRequests:
    """Every request is here from its placement to its last piece."""

    def __init__(self) -> None:
        self._running: dict[RequestId, Running] = {}

    def __iter__(self) -> Iterator[Running]:
        return iter(self._running.values())

    def __contains__(self, name: str) -> bool:
        return name in self._running

    @contextmanager
    def holding(self, name: RequestId, running: Running) -> Iterator[None]:
        """The request may be found while the block runs."""
        assert name not in self._running, f"two live requests are called {name}"
        self._running[name] = running
        try:
            yield
        finally:
            del self._running[name]

    def find(self, name: str) -> Running:
        """Raises RequestNotFound."""
        running = self._running.get(RequestId(name))
        if running is None:
            raise RequestNotFound(f"no request '{name}' is live at this router; its answer's x-request-id is its name")
        return running


def served_tokens(
    tokenizer: Tokenizer, planned: PlannedChoice, text: TextOptions, output: Sequence[int], sent: Sent
) -> int:
    """How many tokens of `output` its client has wholly: their text, and their reports where they were asked for.

    Tokens without text count once text behind them was sent.
    """
    detokenizer = tokenizer.detokenizer(skip_special_tokens=text.skip_special_tokens)
    length = len(detokenizer.push(planned.prompt)) if text.echo else 0
    served = 0
    for count, token_id in enumerate(output, 1):
        piece = detokenizer.push((token_id,))
        length += len(piece)
        if length > sent.characters:
            break
        if piece and not detokenizer.within_character:
            served = count
    if planned.sampling.logprobs is None:
        return served
    return min(served, max(0, sent.reports - (len(planned.prompt) if text.echo else 0)))
