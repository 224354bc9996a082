"""The tokens of a request as one key per whole page."""

from array import array
from collections.abc import Callable, Sequence


class PageKeys:
    """Keys of the pages that are whole so far; made once each. `tokens(start, stop)` are the request's own."""

    def __init__(self, page_tokens: int, tokens: Callable[[int, int], Sequence[int]]) -> None:
        self._page_tokens, self._tokens = page_tokens, tokens
        self._keys: list[bytes] = []

    def first(self, pages: int) -> list[bytes]:
        """Keys of at least the first `pages` pages, whose tokens must be known; not to be changed."""
        size, made = self._page_tokens, len(self._keys)
        if pages > made:
            key_bytes = size * _TOKEN.itemsize
            whole = array(_TOKEN.typecode, self._tokens(made * size, pages * size)).tobytes()
            self._keys += [whole[at : at + key_bytes] for at in range(0, len(whole), key_bytes)]
        return self._keys


_TOKEN = array("i")
