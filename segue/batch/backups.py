"""What retraction asks of host memory: to copy a request's whole state out and back; protocols only, no tensors."""

from typing import Protocol

from segue.state.pool import PoolCounts
from segue.state.tables import StateTables


class Backup(Protocol):
    """The state of one request after `depth` tokens, in host memory. Whoever saved it gives it back by `free`."""

    @property
    def depth(self) -> int: ...

    @property
    def bytes(self) -> int:
        """What one copy of it, out or in, moves."""

    @property
    def hosted(self) -> bool:
        """Whether it lies in the store's own host memory; what came from a snapshot brings its own."""

    @property
    def copied(self) -> bool:
        """Whether the copy that was begun last, out or in, has finished."""


class BackupStore(Protocol):
    """Host memory of one worker (decode_service.retraction in a worker, a script in tests). Engine thread only."""

    def save(self, tables: StateTables, depth: int) -> Backup | None:
        """Begins to copy out the state after `depth` tokens that lies in the units of `tables`.

        None when host memory is used up: then nothing was taken. Until it is `copied` no unit may change its owner.
        What lies past `depth` in the last pages is cleared. The tables may hold more than the state needs.
        """

    def restore(self, backup: Backup, tables: StateTables) -> None:
        """Begins to copy a backup into the units of `tables`, which hold exactly what its state needs.

        Until it is `copied` nobody may read or write them.
        """

    def require_whole(self, backup: Backup, tables: StateTables) -> None:
        """Raises DigestMismatch naming component and positions when what was restored is not what was saved.

        Compares nothing where verification is off.
        """

    def free(self, backup: Backup) -> None:
        """Gives the host memory of a backup back, none of whose copies is under way."""

    def finish(self) -> None:
        """Waits until every copy that was begun has finished."""

    def check(self) -> None:
        """Asserts that exactly what its backups lie in is held."""

    def counts(self) -> tuple[PoolCounts, ...]:
        """The disjoint sets of host memory; nothing is held when no backup is left."""
