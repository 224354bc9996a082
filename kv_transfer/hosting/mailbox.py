"""Commands on their way to the engine thread; many may put, one takes, and the taker sleeps while there is nothing."""

import threading
from typing import Generic, TypeVar

from segue.errors import QueueFull

C = TypeVar("C")


class Mailbox(Generic[C]):
    """A queue from any thread to the engine thread.

    Offers are refused beyond `offers_max`. The other commands need no bound of their own: a live request is cancelled
    or finished once, and all who ask for a status share one question.
    """

    def __init__(self, offers_max: int) -> None:
        self._offers_max = offers_max
        self._offers = 0
        self._commands: list[C] = []
        self._filled = threading.Condition()

    def offer(self, command: C) -> None:
        """Adds a command that brings new work. Raises QueueFull for one too many."""
        with self._filled:
            if self._offers >= self._offers_max:
                raise QueueFull(f"{self._offers} submissions wait for the engine's next step; retry later")
            self._offers += 1
            self._commands.append(command)
            self._filled.notify()

    def put(self, command: C) -> None:
        """Adds a command."""
        with self._filled:
            self._commands.append(command)
            self._filled.notify()

    def take(self) -> list[C]:
        """Everything there is, oldest first, at once."""
        with self._filled:
            commands, self._commands, self._offers = self._commands, [], 0
            return commands

    def wait(self, timeout_s: float | None) -> None:
        """Sleeps until there is a command, or for `timeout_s`."""
        with self._filled:
            self._filled.wait_for(lambda: bool(self._commands), timeout_s)
