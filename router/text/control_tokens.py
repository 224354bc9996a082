"""Keeps control tokens that a client wrote in a message apart from those that the chat template writes.

A client that writes `<|end|>` into a message must not end its turn and begin another in somebody else's name. So before
a template is rendered, a mark (a code point that is no character and occurs nowhere else) is put in every control token
in the client's texts, and at edges that might complete one together with what the template puts beside them. What reads
as a control token in the rendered text was then written by the template. Marks go before the text between is encoded.
"""

import re
from collections.abc import Collection, Iterable

from segue.errors import InvalidRequest

# Unicode reserves these for use within a program; they stand for nothing in a text.
NONCHARACTERS = tuple(map(chr, range(0xFDD0, 0xFDF0)))


class ControlTokens:
    """The control tokens of one tokenizer, by their text."""

    def __init__(self, texts: Collection[str]) -> None:
        self._texts = sorted(texts, key=lambda text: (-len(text), text))
        self._firsts = {text[0] for text in texts}
        # Longest first: where one token begins with another, the tokenizer reads the longer one.
        self._pattern = re.compile("|".join(map(re.escape, self._texts)) or r"(?!)")
        self._beginnings = {text[:end] for text in texts for end in range(1, len(text))}
        self._endings = {text[start:] for text in texts for start in range(1, len(text))}
        self._partial_length_max = max((len(text) - 1 for text in texts), default=0)

    def choose_mark(self, texts: Iterable[str]) -> str:
        """A mark that occurs in none of the texts. Raises InvalidRequest when a client used up all of them."""
        used = {letter for text in texts for letter in text}
        for mark in NONCHARACTERS:
            if mark not in used:
                return mark
        raise InvalidRequest("the messages contain every noncharacter from U+FDD0 to U+FDEF", param="messages")

    def disarm(self, text: str, mark: str) -> str:
        """The text with a mark in every control token, and at edges that may be a part of one."""
        if any(first in text for first in self._firsts):
            for token in self._texts:
                if len(token) == 1 and token in text:
                    raise InvalidRequest(f"the messages contain the control token {token!r}", param="messages")
                # Breaking one occurrence may leave another that overlaps it.
                while token in text:
                    text = text.replace(token, token[0] + mark + token[1:])
        # Templates often trim a text, so the edges that count are those of what is left then.
        core = text.strip()
        if not core:
            return text
        before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
        whole = any(core in token for token in self._texts)
        lead = mark if self._starts_within(core) else ""
        tail = mark if self._ends_within(core) or whole else ""
        return before + lead + core + tail + after

    def split(self, rendered: str) -> list[str]:
        """Text and control tokens in turn, text first and last; any of the texts may be empty."""
        parts, end = [], 0
        for match in self._pattern.finditer(rendered):
            parts += [rendered[end : match.start()], match[0]]
            end = match.end()
        return [*parts, rendered[end:]]

    def _starts_within(self, text: str) -> bool:
        return any(text[:length] in self._endings for length in range(1, self._partial_length_max + 1))

    def _ends_within(self, text: str) -> bool:
        return any(text[-length:] in self._beginnings for length in range(1, self._partial_length_max + 1))
