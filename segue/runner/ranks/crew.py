"""Rank 0's ends: starts the other ranks of its worker, gives them orders, and watches whether they live."""

import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np

from segue.batch.step import IntArray
from segue.errors import ConfigError, RankFailed, RankLost, ServingError
from segue.runner.ranks.frames import Frames
from segue.runner.ranks.memory import SharedMemory
from segue.runner.ranks.orders import Order

log = logging.getLogger("segue.ranks")

RANK_VARIABLE = "SEGUE_RANK"
"""The environment of a rank: its number, and descriptors of the shared memory and of its two connections to rank 0."""
EXIT_FAILED = 1
"""How a rank ends that broke an invariant of its own: Python's own code for what nobody has caught."""
_START_S = 60.0
"""What a rank has until its first sign of life: it imports what it needs, and reads no weights yet."""
_BEAT_S = 0.5
_VERDICT_S = 2.0
_NOTHING: IntArray = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class _Member:
    """`orders` is used by the engine thread, `life` by the one that watches this rank."""

    process: "subprocess.Popen[bytes]"
    orders: Frames
    life: Frames


class Crew:
    """The ranks above 0 of one worker, as processes on this machine, with the memory and the folder that they share.

    `broadcast` and `wait_done` belong to the engine thread. `lost` ends with RankLost when one of the ranks is killed
    or gives no sign of life within `limit_s`, with RankFailed when it ends by a mistake of its own. When the thread
    that made the crew ends, so do they, however it ends.
    """

    def __init__(self, tp_size: int, command: Sequence[str], limit_s: float) -> None:
        """Starts them. Raises ConfigError where ranks cannot be, RankLost when one cannot be started."""
        assert tp_size > 1, tp_size
        if sys.platform != "linux":
            raise ConfigError("engine.tp above 1 needs Linux: ranks share memory that has no name", param="tp")
        self.tp_size = tp_size
        self.lost: Future[None] = Future()
        self._lost_once = threading.Lock()
        self._limit_s = limit_s
        self._closed = threading.Event()
        self.memory = SharedMemory.create()
        self.folder = tempfile.mkdtemp(prefix="segue-ranks-")
        """Where the ranks meet: private to this user, gone with the crew."""
        self._at_end: list[Callable[[], None]] = []
        self._members: dict[int, _Member] = {}
        try:
            for rank in range(1, tp_size):
                self._members[rank] = _start(rank, command, self.memory, limit_s)
        except OSError as error:
            self.close()
            raise RankLost(f"rank {rank} of {tp_size} cannot be started: {error}") from error
        log.info("ranks 1 to %d have started, pids %s", tp_size - 1, ", ".join(map(str, self.pids)))
        for rank, member in self._members.items():
            watching = threading.Thread(target=self._watch, args=(rank, member), name=f"rank {rank}")
            watching.daemon = True
            watching.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of ranks 1, 2, ..."""
        return tuple(member.process.pid for member in self._members.values())

    def at_end(self, told: Callable[[], None]) -> None:
        """`told` is called when a rank is found lost, on the thread that finds it, and when the crew is closed."""
        self._at_end.append(told)

    def introduce(self, about: bytes) -> None:
        """What every rank must know first. Raises RankLost."""
        for rank, member in self._members.items():
            with self._losing(rank):
                member.orders.put_bytes(about)

    def broadcast(self, order: Order, values: IntArray = _NOTHING) -> None:
        """Has every rank carry out an order; returns when it is on its way. Raises RankLost or RankFailed."""
        if self.lost.done():
            self.lost.result()
        for rank, member in self._members.items():
            with self._losing(rank):
                member.orders.put(order, values)

    def wait_done(self, order: Order, within_s: float | None = None) -> None:
        """Returns when every rank says that it has carried out this order, which was given last, and all before it.

        Raises RankLost.
        """
        for rank, member in self._members.items():
            with self._losing(rank):
                told = member.orders.take_bytes(self._limit_s if within_s is None else within_s)
                assert told == order.name.encode(), f"rank {rank} answers {told!r} to {order.name}"

    def cause(self, error: BaseException) -> BaseException:
        """What ended the worker when a step ended with `error`: a sum tells less than the end of a rank does."""
        if not isinstance(error, RankLost):
            return error
        try:
            return self.lost.exception(_VERDICT_S) or error
        except TimeoutError:
            return error

    def close(self) -> None:
        """Ends them. Nothing of them is left afterwards."""
        self._closed.set()
        for member in self._members.values():
            member.process.kill()
            member.process.wait()
            member.orders.close()
            member.life.close()
        for told in self._at_end:
            told()
        self.memory.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def _losing(self, rank: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._verdict(rank, error) from error

    def _verdict(self, rank: int, error: OSError) -> ServingError:
        """What became of a rank whose connection broke, or on which it said nothing."""
        process, name = self._members[rank].process, f"rank {rank} of {self.tp_size}"
        try:
            code = process.wait(_VERDICT_S / 2)
        except subprocess.TimeoutExpired:
            return RankLost(f"{name} gives no sign of life: {error}")
        if code == EXIT_FAILED:
            return RankFailed(f"{name} broke an invariant of its own; its output says which")
        return RankLost(f"{name} has ended with {code}")

    def _watch(self, rank: int, member: _Member) -> None:
        """Asks for a sign of life at every beat; a rank that computes gives it all the same."""
        within_s = max(_START_S, self._limit_s)
        try:
            while not self._closed.wait(_BEAT_S):
                member.life.put_bytes(b"?")
                member.life.take_bytes(within_s)
                within_s = self._limit_s
        except OSError as error:
            if self._closed.is_set():
                return
            verdict = self._verdict(rank, error)
            log.error("%s (pid %d)", verdict.message, member.process.pid)
            with self._lost_once:
                if not self.lost.done():
                    self.lost.set_exception(verdict)
            # One that is stopped keeps its connections: others would wait for it.
            member.process.kill()
            for told in self._at_end:
                told()
            # The engine thread may wait for its answer.
            member.orders.shut()


def _start(rank: int, command: Sequence[str], memory: SharedMemory, limit_s: float) -> _Member:
    (orders, their_orders), (life, their_life) = socket.socketpair(), socket.socketpair()
    with their_orders, their_life:
        descriptors = (memory.descriptor, their_orders.fileno(), their_life.fileno())
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, RANK_VARIABLE: " ".join(map(str, (rank, *descriptors)))},
            pass_fds=descriptors,
        )
    return _Member(process, Frames(orders, limit_s), Frames(life, limit_s))
