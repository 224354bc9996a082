"""The tokens of a request as one key per whole page: their bytes."""

from collections.abc import Callable

from segue.tokens import TOKEN_BYTES


class PageKeys:
    """Keys of the pages that are whole so far; made once each.

    `token_bytes(start, stop)` are those of the request's own tokens at positions [start, stop).
    """

    def __init__(self, page_tokens: int, token_bytes: Callable[[int, int], bytes]) -> None:
        self._page_tokens, self._token_bytes = page_tokens, token_bytes
        self._keys: list[bytes] = []

    def first(self, pages: int) -> list[bytes]:
        """Keys of at least the first `pages` pages, whose tokens must be known; not to be changed."""
        size, made = self._page_tokens, len(self._keys)
        if pages > made:
            whole, key_bytes = self._token_bytes(made * size, pages * size), size * TOKEN_BYTES
            self._keys += [whole[at : at + key_bytes] for at in range(0, len(whole), key_bytes)]
        return self._keys
