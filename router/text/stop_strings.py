"""Finds stop strings in text while it comes, and says how many tokens of the output are kept.

Aho and Corasick's automaton (1975) reads each character once, whatever the number of stop strings: its depth is the
length of the longest suffix read so far that may still become a stop string, so exactly that much is held back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string was found. `kept_tokens` is the least number of tokens whose text covers what the client gets."""

    stop: str
    kept_tokens: int


@dataclass(slots=True)
class _State:
    """A prefix of some stop string. `found` is the longest stop string that ends here."""

    depth: int
    moves: dict[str, "_State"]
    fallback: "_State | None" = None
    found: str | None = None


class StopAutomaton:
    """Stop strings made ready for searching, once for all the outputs that end at them."""

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: none empty."""
        assert all(stops), "an empty stop string would end every output at once"
        self.stops = tuple(stops)
        self.root = _automaton(stops)


class StopStrings:
    """Searches one output. The stop string that ends first wins; of several ending together, the longest."""

    def __init__(self, stops: StopAutomaton, *, kept_in_output: bool = False, min_tokens: int = 0) -> None:
        """`kept_in_output` leaves the found string in the text; the first `min_tokens` tokens are not searched."""
        self._root = stops.root
        self._state = self._root
        self._kept_in_output = kept_in_output
        self._min_tokens = min_tokens
        self._held = ""
        self._tokens = 0
        self._length = 0
        # Text length after each token that may be the last kept one; a token that adds no text never is.
        self._ends: deque[tuple[int, int]] = deque([(0, 0)])
        self.match: StopMatch | None = None

    def push(self, text: str) -> str:
        """Takes the text that one more token completed; returns what may go to the client now.

        After a match nothing may be pushed: `match` is set, and the returned text is the last.
        """
        assert self.match is None, "the output has ended at a stop string"
        self._tokens += 1
        if text:
            self._ends.append((self._length + len(text), self._tokens))
        if self._tokens <= self._min_tokens:
            return self._release(text)
        return self._search(text)

    def finish(self, text: str) -> str:
        """Takes the text that is left when the output ends, which no further token brought; returns all that is due."""
        assert self.match is None, "the output has ended at a stop string"
        due = self._search(text)
        return due if self.match else due + self._held

    def _search(self, text: str) -> str:
        state = self._state
        if state is self._root and not state.moves:
            return self._release(text)
        for place, letter in enumerate(text):
            state = _step(self._root, state, letter)
            if state.found is not None:
                return self._found(state.found, self._held + text[: place + 1])
        self._state = state
        seen = self._held + text
        return self._release(seen, held=state.depth)

    def _release(self, text: str, held: int = 0) -> str:
        """Splits off what is held back, and forgets token ends that can no longer be the last."""
        released_before = self._length - len(self._held)
        self._length = released_before + len(text)
        self._held = text[len(text) - held :]
        released = self._length - held
        while self._ends and self._ends[0][0] < released:
            self._ends.popleft()
        return text[: len(text) - held]

    def _found(self, stop: str, seen: str) -> str:
        text = seen if self._kept_in_output else seen.removesuffix(stop)
        length = self._length - len(self._held) + len(text)
        kept = next((tokens for end, tokens in self._ends if end >= length), self._tokens)
        self.match = StopMatch(stop, kept)
        self._held = ""
        return text


def _step(root: _State, state: _State, letter: str) -> _State:
    reached: _State | None = state
    while reached is not None and letter not in reached.moves:
        reached = reached.fallback
    return root if reached is None else reached.moves[letter]


def _automaton(stops: Sequence[str]) -> _State:
    root = _State(0, {})
    for stop in stops:
        state = root
        for letter in stop:
            state = state.moves.setdefault(letter, _State(state.depth + 1, {}))
        state.found = stop
    # Breadth first, so that a state's fallback, which is shallower, is complete before the state is.
    queue = deque([root])
    while queue:
        state = queue.popleft()
        for letter, child in state.moves.items():
            child.fallback = root if state is root else _step(root, state.fallback or root, letter)
            if child.found is None:
                child.found = child.fallback.found
            queue.append(child)
    return root
