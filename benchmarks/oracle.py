"""What a prefix cache of unlimited memory would have reused: the same requests, order of arrival and placement rule.

Knows nothing of the tree: it compares tokens.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from segue.cache.shape import Strategy

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where checkpoints may stand: on multiples of `grid` in a prompt, of `interval` in what is decoded.

    With no_buffer only at the end of a prompt and of a request.
    """

    grid: int
    interval: int
    strategy: Strategy

    def below(self, tokens: int) -> int:
        """The deepest grid point that is not beyond."""
        return tokens // self.grid * self.grid


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request came with this prompt."""

    request: int
    prompt: Sequence[int]


@dataclass(frozen=True, slots=True)
class Computed:
    """A step brought the request to this depth."""

    request: int
    depth: int
    decode: bool


@dataclass(frozen=True, slots=True)
class Over:
    """The request ended; all its tokens but the last, whose state never was, are computed."""

    request: int
    tokens: Sequence[int]


Event = Arrived | Computed | Over


@dataclass(slots=True)
class _Past:
    tokens: Tokens
    prompt_tokens: int
    checkpoints: set[int] = field(default_factory=set)
    prefilling: bool = True


@dataclass(slots=True)
class Reusable:
    """Tokens that could have been reused: by the placement rule, and by who knows the future and needs no rule."""

    by_rule: int = 0
    at_best: int = 0


def replay(events: Sequence[Event], placement: Placement) -> Reusable:
    """Runs the events past a cache that never forgets."""
    pasts: dict[int, _Past] = {}
    found = Reusable()
    for event in events:
        match event:
            case Arrived(request, prompt):
                pasts[request] = _arrive(pasts.values(), np.asarray(prompt), placement, found)
            case Computed(request, depth, decode):
                _compute(pasts[request], depth, decode, placement)
            case Over(request, tokens):
                past = pasts[request]
                past.tokens = np.asarray(tokens)
                if placement.strategy is Strategy.NO_BUFFER or len(tokens) % placement.grid == 0:
                    past.checkpoints.add(len(tokens))
    return found


def _arrive(pasts: Iterable[_Past], prompt: Tokens, placement: Placement, found: Reusable) -> _Past:
    extra = placement.strategy is Strategy.EXTRA_BUFFER
    resumable = longest = 0
    for past in pasts:
        shared = _shared(past.tokens, prompt[:-1])
        if extra and past.prefilling:
            # Who is in the queue has the running one stop where the two part.
            past.checkpoints.add(placement.below(shared))
        longest = max(longest, shared)
        resumable = max([resumable, *(depth for depth in past.checkpoints if depth <= shared)])
    found.by_rule += resumable
    found.at_best += longest
    checkpoints = {placement.below(len(prompt) - 1), placement.below(longest)} if extra else set()
    return _Past(prompt, len(prompt), checkpoints)


def _compute(past: _Past, depth: int, decode: bool, placement: Placement) -> None:
    if not decode and depth == past.prompt_tokens:
        past.prefilling = False
    if placement.strategy is Strategy.NO_BUFFER:
        if not decode and depth == past.prompt_tokens:
            past.checkpoints.add(depth)
    elif depth % (placement.interval if decode else placement.grid) == 0:
        past.checkpoints.add(depth)


def _shared(one: Tokens, other: Tokens) -> int:
    """How many tokens the two have in common from the start."""
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length
