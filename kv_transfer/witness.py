"""What this process says when others ask whether a process of its machine is gone."""

from kv_transfer.process import ProcessWatch
from segue.peering import Life, ProcessIdentity


class Witness:
    """Judges by its own kernel. Remembers only processes that have ended and left something to send."""

    def __init__(self) -> None:
        self._leaving: dict[ProcessIdentity, ProcessWatch] = {}

    def life(self, process: ProcessIdentity) -> Life:
        """ALIVE while the process, or what it has sent, may still write; UNKNOWN where we cannot see that."""
        self._leaving = {one: watch for one, watch in self._leaving.items() if one == process or not watch.gone()}
        watch = self._leaving.pop(process, None) or ProcessWatch.open(process)
        if watch is None:
            return Life.UNKNOWN
        if watch.gone():
            return Life.GONE
        if watch.ended():
            self._leaving[process] = watch
        else:
            watch.close()
        return Life.ALIVE
