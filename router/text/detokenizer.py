"""Tokens to text while they come: whole characters only, at the same cost for every token."""

import codecs
from collections.abc import Iterable, Set

from router.text.token_bytes import TokenBytes


class Detokenizer:
    """Text of one output. What `push` and `flush` return adds up to the decoding of all tokens at once.

    A character whose bytes are spread over several tokens comes with the last of them; bytes that can belong to no
    character come as U+FFFD, as soon as that is certain.
    """

    def __init__(self, token_bytes: TokenBytes, *, skipped: Set[int]) -> None:
        """`skipped` tokens have no text (special tokens, unless the client wants to see them)."""
        self._token_bytes = token_bytes
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip_space = token_bytes.strips_first_space

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty."""
        raw = b"".join(self._token_bytes[token_id] for token_id in token_ids if token_id not in self._skipped)
        return self._stripped(self._decoder.decode(raw))

    @property
    def within_character(self) -> bool:
        """Whether bytes have come whose character is not complete."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """What is left at the end: U+FFFD if the output ends within a character. Nothing may be pushed after it."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text
