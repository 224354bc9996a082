"""The one thread that owns the engine: commands in, steps, news out; knows nothing of sessions or gRPC.

It builds the engine itself, because thread-local settings of the tensor library belong to the thread that computes.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from kv_transfer.hosting.loading import Loaded
from kv_transfer.hosting.mailbox import Mailbox
from kv_transfer.hosting.outlet import Outlet
from segue.runner.ranks.crew import Crew

C = TypeVar("C")
N = TypeVar("N")
C_contra = TypeVar("C_contra", contravariant=True)
N_co = TypeVar("N_co", covariant=True)


class Station(Protocol[C_contra, N_co]):
    """What one kind of worker does on the engine thread. Nobody else calls it."""

    def apply(self, command: C_contra) -> None:
        """Carries out one command."""

    def turn(self) -> N_co | None:
        """Computes the next step, if there is one. Returns what the outside must know, None when that is nothing."""

    def wait_s(self) -> float | None:
        """How long there is nothing to do if no command comes; 0 when there is something now, None for ever."""


class EngineThread(Generic[C, N]):
    """Runs an engine until it is told to stop or breaks.

    `built` ends with what was loaded, or with the error that kept it from being built. `station` makes the thread's
    work of it.
    """

    def __init__(
        self,
        build: Callable[[], Loaded],
        station: Callable[[Loaded], Station[C, N]],
        mailbox: "Mailbox[C | None]",
        outlet: Outlet[N],
    ) -> None:
        self.built: Future[Loaded] = Future()
        self._build = build
        self._station = station
        self._mailbox = mailbox
        self._outlet = outlet
        # A daemon: a process that must end does not wait for a forward, let alone for weights that are being read.
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        # The supervisor of the engine: nothing it raises may vanish with the thread, whatever it is.
        self.built.set_running_or_notify_cancel()
        try:
            loaded = self._build()
        except BaseException as error:  # noqa: BLE001
            self.built.set_exception(error)
            return
        crew = None if loaded.built is None else loaded.built.crew
        try:
            self._serve(loaded, crew)
        finally:
            if crew is not None:
                crew.close()

    def _serve(self, loaded: Loaded, crew: Crew | None) -> None:
        try:
            station = self._station(loaded)
        except BaseException as error:  # noqa: BLE001
            self.built.set_exception(error)
            return
        self.built.set_result(loaded)
        if crew is not None:
            crew.lost.add_done_callback(self._on_lost)
        try:
            self._loop(station)
        except BaseException as error:  # noqa: BLE001
            self._outlet.fail(error if crew is None else crew.cause(error))

    def _on_lost(self, lost: "Future[None]") -> None:
        """A rank is gone: known here also while there is nothing to compute."""
        if (error := lost.exception()) is not None:
            self._outlet.fail(error)
            # The thread that may be asleep ends, and the other ranks with it.
            self._mailbox.put(None)

    def _loop(self, station: Station[C, N]) -> None:
        while True:
            for command in self._mailbox.take():
                if command is None:
                    return
                station.apply(command)
            if (news := station.turn()) is not None:
                self._outlet.post(news)
            if (wait_s := station.wait_s()) != 0:
                self._mailbox.wait(wait_s)
