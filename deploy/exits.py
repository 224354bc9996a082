"""Exit codes of `segue`, and how an ended process is spoken of."""

import signal

from kv_transfer.hosting.exits import EXIT_BROKEN, EXIT_OK

__all__ = ["EXIT_BROKEN", "EXIT_CONFIG", "EXIT_FAILED", "EXIT_OK", "died_how"]

EXIT_FAILED = 1
"""Something outside stopped it: a server that is not there, a child that cannot be kept up."""
EXIT_CONFIG = 2
"""It can never run like this (argparse uses the same code); starting it again is of no use."""


def died_how(code: int) -> str:
    """An exit code, negative for a signal, as a predicate."""
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code == EXIT_BROKEN:
        return "broke an invariant of its own"
    return f"ended with code {code}"
