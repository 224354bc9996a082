"""`segue worker`: one worker process; turns settings into the worker's own terms and reports how its start goes."""

import asyncio
import time
from typing import NoReturn

from decode_service.host import Host as DecodeHost
from decode_service.retraction.parts import retraction_parts
from deploy.reports import Loading, Planned, Ready, Reporter
from deploy.settings import Settings
from kv_transfer.hosting.loading import Loaded, load
from kv_transfer.hosting.process import end_process, run_host
from prefill_service.host import PrefillHost
from segue.batch.role import Role
from segue.weights.source import LoadProgress

_SHOWN_EVERY_S = 0.5


def run(settings: Settings, report: Reporter) -> NoReturn:
    """Serves until told to end, and ends the process. Raises what kept the worker from starting."""

    def build() -> Loaded:
        engine = settings.engine_of(Role(settings.engine.role))
        retraction = retraction_parts(settings.retraction, engine.page_tokens)
        return load(engine, _Progress(report), lambda text: report(Planned(text)), retraction)

    # The engine thread may still be inside a forward or a read of weights, which nobody waits for.
    end_process(asyncio.run(run_host(lambda: host_of(settings), build, lambda address: report(Ready(address)))))


def host_of(settings: Settings) -> DecodeHost | PrefillHost:
    """A worker of the role that its engine has. Raises ConfigError when its port cannot be had."""
    if settings.engine.role == Role.PREFILL:
        return PrefillHost(settings.worker, settings.transfer, tls=settings.tls)
    return DecodeHost(settings.worker, settings.transfer, tls=settings.tls, snapshots=settings.snapshot)


class _Progress:
    """Passes on as much of the loading as a person can read, and its end."""

    def __init__(self, report: Reporter) -> None:
        self._report = report
        self._shown_at = time.monotonic()

    def __call__(self, progress: LoadProgress) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _SHOWN_EVERY_S or progress.bytes_taken == progress.bytes_total:
            self._shown_at = now
            self._report(Loading(progress.bytes_taken, progress.bytes_total))
