"""How much of each component a request needs: the arithmetic that plan, admission and scheduler share."""


def page_count(tokens: int, page_tokens: int) -> int:
    """Pages that hold `tokens` positions from 0."""
    return -(-tokens // page_tokens)


def first_window_page(tail: int, window: int, page_tokens: int) -> int:
    """Index of the first page that meets [tail - window, tail).

    Pages before it are out of the window at depth `tail`.
    """
    return max(0, tail - window) // page_tokens


def retained_pages_max(window: int, page_tokens: int) -> int:
    """Most window pages one request holds below its tail for its newest checkpoint: what meets [c* - W, c*).

    While checkpoints come in time the two ranges meet, and it is less; one that is skipped or late must not matter.
    """
    return page_count(window, page_tokens) + 1 if window else 0


SLOTS_EACH = 3
"""Recurrent slots of a request whose prefixes are cached: working, pinned checkpoint, checkpoint in flight."""


def window_pages_max(window: int, chunk_tokens: int, page_tokens: int) -> int:
    """Most window pages one request holds while it computes `chunk_tokens` positions in one step.

    The step reads [c - W, c) and writes [c, c + chunk): W + chunk positions that may start anywhere in a page.
    """
    return page_count(window + chunk_tokens - 1, page_tokens) + 1
