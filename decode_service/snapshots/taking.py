"""Running requests into snapshots, on the engine thread: who stands still, whose image is taken, and what comes of it.

An export gives the request up once its snapshot is durable; until then it stands still, and when that fails it goes on.
A copy is taken between two steps, and the request runs on.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import torch

from decode_service.snapshots.commands import SnapshotDone, WriteSnapshot
from decode_service.snapshots.images import StateImages
from decode_service.snapshots.writing import SnapshotWriting, Written
from segue.batch.request import Request
from segue.engine import Engine
from segue.errors import QueueFull, ServingError, SnapshotCapacity, SnapshotMemoryShort, SnapshotNotReady
from segue.ids import Handle
from segue.state.snapshot.manifest import ManifestRequest, ManifestState
from segue.wire import SnapshotFigures, sampling_to_json

READY_S = 10.0
"""How long a request that has no whole state here now is waited for."""

ASKED_MAX = 1024
"""Who may wait for that at once: no fewer than a worker has requests, each of which a router may want."""


@dataclass(slots=True)
class _Asked:
    command: WriteSnapshot
    until: float


class SnapshotTaking:
    """`post` takes commands for the engine thread from any other."""

    def __init__(
        self,
        engine: Engine,
        images: StateImages,
        writing: SnapshotWriting,
        identity: Mapping[str, str],
        post: Callable[[SnapshotDone], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._images = images
        self._writing = writing
        self._identity = dict(identity)
        self._post = post
        self._clock = clock
        self._asked: list[_Asked] = []
        self._figures = SnapshotFigures()
        # Exports that are being written; their requests stand still.
        self._leaving: set[Handle] = set()

    @property
    def figures(self) -> SnapshotFigures:
        return self._figures

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for a request to have a whole state."""
        return bool(self._asked)

    def ask(self, command: WriteSnapshot) -> None:
        """A snapshot is wanted; `command.answer` ends with what was written, or why nothing was.

        Whoever cancels that before the state is taken has withdrawn the command.
        """
        self._asked = [one for one in self._asked if not one.command.answer.cancelled()]
        if any(one.command.handle == command.handle for one in self._asked):
            _refuse(command, SnapshotNotReady(f"somebody waits for the request of handle {command.handle} already"))
        elif len(self._asked) >= ASKED_MAX:
            _refuse(command, SnapshotNotReady(f"{ASKED_MAX} others wait for requests that have no whole state here"))
        else:
            self._asked.append(_Asked(command, self._clock() + READY_S))

    def turn(self) -> None:
        """Takes the images that can be taken now, between two steps."""
        asked, self._asked = self._asked, []
        for one in asked:
            command = one.command
            if command.answer.cancelled():
                continue
            try:
                taken = self.take(command)
            except SnapshotMemoryShort as error:
                # Not tried again at each step: all streams would wait for that.
                command.answer.set_exception(error)
            except SnapshotNotReady as error:
                if self._clock() < one.until:
                    self._asked.append(one)
                else:
                    _refuse(command, error)
            else:
                if not taken:
                    gone = f"the request of handle {command.handle} has ended: there is nothing to take"
                    _refuse(command, SnapshotNotReady(gone))

    def done(self, command: SnapshotDone) -> None:
        """A snapshot is durable, or has failed."""
        asked, written = command.asked, command.written
        if command.error is not None and not isinstance(command.error, ServingError):
            # Our own mistake on the thread that writes: it ends the worker as one on this thread does.
            raise command.error
        if asked.handle in self._leaving and not asked.copy:
            self._leaving.remove(asked.handle)
            if written is not None:
                self._engine.leave(asked.handle, written.snapshot_id)
                self._engine.unpin(asked.handle)
            else:
                self._engine.unpark(asked.handle)
        figures = self._figures
        if written is not None:
            self._figures = SnapshotFigures(
                figures.exported + (not asked.copy),
                figures.copied + asked.copy,
                figures.failed,
                figures.bytes + written.bytes,
            )
            asked.answer.set_result(written)
        else:
            assert command.error is not None, "what was not written has a reason"
            self._figures = replace(figures, failed=figures.failed + 1)
            asked.answer.set_exception(command.error)

    def take(self, command: WriteSnapshot) -> bool:
        """Takes the image that is asked for and has it written, unless nobody wants it any more: from here on nothing
        is withdrawn. False when the request is gone.

        Raises SnapshotNotReady when there is no whole state here now, or too many images wait to be written, or
        SnapshotMemoryShort.
        """
        self._writing.require_room()
        request = self._engine.park(command.handle, command.attempt)
        if request is None:
            return False
        assert request.tables is not None, "a decoding request owns its state"
        if not command.answer.set_running_or_notify_cancel():
            self._engine.unpark(command.handle)
            return True
        try:
            image = self._images.take(request.tables, request.computed)
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._engine.unpark(command.handle)
            size = self._images.bytes(request.computed)
            raise SnapshotMemoryShort(
                f"request {request.request_id}: there is no memory now for the {size} bytes of its state"
            ) from error
        except (QueueFull, SnapshotCapacity) as error:
            self._engine.unpark(command.handle)
            raise SnapshotNotReady(f"request {request.request_id}: {error.message}") from error
        described = self._described(request, command), self._state(request)
        if command.copy:
            self._engine.unpark(command.handle)
        else:
            self._leaving.add(command.handle)
        writing = self._writing.submit(image, *described, command.snapshot_id)
        writing.add_done_callback(lambda future: self._post(_outcome(command, future)))
        return True

    def _described(self, request: Request, command: WriteSnapshot) -> ManifestRequest:
        left_s = None if request.deadline is None else max(0.0, request.deadline - self._clock())
        return ManifestRequest(
            request_id=request.request_id,
            kind=command.kind,
            prompt=tuple(request.prompt),
            output=tuple(request.output),
            sampling=sampling_to_json(request.sampling),
            priority=request.priority,
            cache_salt=request.cache_salt,
            extension=request.extension.hex(),
            deadline_left_s=left_s,
            cached_tokens=request.cached_tokens,
            served=min(command.served, len(request.output)),
            about=command.about,
        )

    def _state(self, request: Request) -> ManifestState:
        facts = self._engine.facts
        return ManifestState(
            computed=request.computed,
            tp_size=self._images.tp_size,
            page_tokens=facts.page_tokens,
            window=facts.window,
            identity=self._identity,
            components={
                one.component.value: (one.start, one.stop) for one in self._images.form.contents(request.computed)
            },
        )


def _refuse(command: WriteSnapshot, error: SnapshotNotReady) -> None:
    """Unless nobody would hear it."""
    if command.answer.set_running_or_notify_cancel():
        command.answer.set_exception(error)


def _outcome(asked: WriteSnapshot, future: "Future[Written]") -> SnapshotDone:
    error = future.exception()
    return SnapshotDone(asked, future.result() if error is None else None, error)
