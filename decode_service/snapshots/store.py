"""Host memory of a worker whose requests may come with a state of their own, which is put in place from where it is."""

from decode_service.snapshots.images import StateImage, StateImages
from segue.batch.backups import Backup, BackupStore
from segue.state.pool import PoolCounts
from segue.state.tables import StateTables


class ImageStore:
    """A BackupStore over another one (segue.batch.backups.BackupStore), which keeps what is retracted."""

    def __init__(self, inner: BackupStore, images: StateImages) -> None:
        self._inner = inner
        self._images = images

    def save(self, tables: StateTables, depth: int) -> Backup | None:
        return self._inner.save(tables, depth)

    def restore(self, backup: Backup, tables: StateTables) -> None:
        if isinstance(backup, StateImage):
            self._images.put(backup, tables)
        else:
            self._inner.restore(backup, tables)

    def require_whole(self, backup: Backup, tables: StateTables) -> None:
        """An image was verified when it was read."""
        if not isinstance(backup, StateImage):
            self._inner.require_whole(backup, tables)

    def free(self, backup: Backup) -> None:
        if not isinstance(backup, StateImage):
            self._inner.free(backup)

    def finish(self) -> None:
        self._inner.finish()

    def check(self) -> None:
        self._inner.check()

    def counts(self) -> tuple[PoolCounts, ...]:
        return self._inner.counts()
