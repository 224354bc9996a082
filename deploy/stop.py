"""`segue stop`: ends a serve of this machine, or the applications on a Ray cluster, and waits until they have ended."""

import os
import select
import signal
from collections.abc import Callable
from pathlib import Path

from deploy.record import Running, running
from segue.errors import ServingError, WorkerUnavailable


def stop_here(folder: Path, port: int | None, wait_s: float, say: Callable[[str], None]) -> None:
    """Ends the serve that is recorded in `folder`; `port` says which when there are several.

    Raises WorkerUnavailable when there is none, ServingError when it is not clear which or it does not end in time.
    """
    found = [one for one in running(folder) if port in (None, one.port)]
    if not found:
        raise WorkerUnavailable("no `segue serve` runs here" + (f" on port {port}" if port else ""))
    if len(found) > 1:
        raise ServingError(f"several are running; choose --port {' or '.join(str(one.port) for one in found)}")
    _end(found[0], wait_s)
    say(f"the serve on port {found[0].port} (pid {found[0].pid}) has ended")


def stop_cluster(address: str, say: Callable[[str], None]) -> None:
    """Ends the applications on a Ray cluster, routers first. Raises WorkerUnavailable when nobody is there."""
    from deploy.ray_cluster import RayCluster

    cluster = RayCluster(address)
    cluster.connect()
    cluster.end()
    say(f"nothing of Segue runs on the Ray cluster at {address} any more")


def _end(one: Running, wait_s: float) -> None:
    try:
        watch = os.pidfd_open(one.pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(watch, signal.SIGTERM)
        ended = select.poll()
        ended.register(watch, select.POLLIN)
        if not ended.poll(wait_s * 1000):
            raise ServingError(f"pid {one.pid} was told to end and did not within {wait_s:.0f} s")
    finally:
        os.close(watch)
