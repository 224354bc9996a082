"""A gate in front of every step of a scripted engine, so that a test decides when the next one runs."""

import threading


class Gate:
    """Open at first. `close` holds the engine thread before its next step, `allow` lets so many steps through."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = True
        self._allowed = 0
        self._standing = False

    def __call__(self) -> None:
        with self._changed:
            self._standing = True
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._open or self._allowed > 0, 20), "a test forgot its gate"
            self._standing = False
            if not self._open:
                self._allowed -= 1

    def reached(self) -> None:
        """Waits until a step stands before the gate. Blocks its thread: call it from none that the step needs."""
        with self._changed:
            # One that was just let through stands there until its thread wakes.
            stands = self._changed.wait_for(lambda: self._standing and not self._allowed, 10)
            assert stands, "no step came to the gate"

    def close(self) -> None:
        with self._changed:
            self._open = False

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def allow(self, steps: int) -> None:
        with self._changed:
            self._allowed += steps
            self._changed.notify_all()
