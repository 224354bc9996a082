"""The way of one choice's state from a worker that it has left to the one that goes on: fetched once, or lost."""

from collections.abc import Callable
from dataclasses import dataclass

from router.inbox import Inbox
from router.link import Link
from segue.batch.role import Role
from segue.batch.submission import Moved
from segue.errors import PoolExhausted, PrefillUnavailable, ServingError, TransferFailed
from segue.ids import WorkerId


@dataclass(frozen=True, slots=True)
class Home:
    """The worker that keeps a state, as the process that it was then, and what it calls the choice."""

    link: Link
    inbox: Inbox
    worker_id: WorkerId


class MovedLeg:
    """A state waits for a worker, or is on its way to one, or there is none. `switched` counts those that arrived."""

    def __init__(self, switched: Callable[[], None]) -> None:
        self._switched = switched
        self._waiting: Moved | None = None
        self._home: Home | None = None
        self._on_its_way = False
        self.count = 0

    @property
    def waiting(self) -> bool:
        """Whether the next worker that takes the choice can have its state."""
        return self._waiting is not None

    def begin(self, link: Link, inbox: Inbox, worker_id: WorkerId) -> None:
        """The choice has left a worker, which keeps its state as long as it is that process."""
        self._waiting = Moved(link.address, inbox.handle, inbox.attempt)
        self._home = Home(link, inbox, worker_id)
        self._on_its_way = False
        self.count += 1

    def offer(self, link: Link) -> Moved | None:
        """What a worker that is offered the choice is told; None where it is to compute all of it."""
        about = link.description
        assert about is not None, "a worker is described before it is offered anything"
        # Another process at the same address has no state of it.
        here = self._waiting is not None and self._waiting.address == link.address
        return self._waiting if about.role == Role.DECODE and not here else None

    def accepted(self, moved: Moved | None) -> None:
        """The worker took the choice. A state is fetched once: nobody else can have it now."""
        self._on_its_way = moved is not None
        if moved is None:
            self.give_up()
        self._waiting = self._home = None

    def give_up(self) -> None:
        """Nobody will come for a state that waits: the worker that keeps it is told so."""
        if self._home is not None:
            self._home.link.dismiss(self._home.inbox, self._home.worker_id)
        self._waiting = self._home = None

    def succeed(self) -> None:
        """The next token came."""
        if self._on_its_way:
            self._on_its_way = False
            self._switched()

    def blamed(self, error: ServingError) -> bool:
        """Whether the state was lost on its way, so that the choice goes on without it."""
        on_its_way, self._on_its_way = self._on_its_way, False
        return on_its_way and isinstance(error, TransferFailed | PrefillUnavailable | PoolExhausted)
