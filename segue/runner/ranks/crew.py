"""Rank 0's ends: starts the other ranks of its worker, gives them orders, and watches whether they live."""

import json
import logging
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from segue.batch.step import IntArray
from segue.errors import RankLost
from segue.runner.ranks.frames import Frames
from segue.runner.ranks.memory import SharedMemory
from segue.runner.ranks.orders import Order

log = logging.getLogger("segue.ranks")

RANK_VARIABLE = "SEGUE_RANK"
"""The environment of a rank: host, port, rank, descriptor of the shared memory, and a secret to introduce itself by."""
_START_S = 60.0
_BEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class _Member:
    """`orders` is used by the engine thread, `life` by the one that watches."""

    process: subprocess.Popen[bytes]
    orders: Frames
    life: Frames


class Crew:
    """The ranks above 0 of one worker, as processes on this machine, and `memory` that they share.

    `tell` and `answers` belong to the engine thread. `lost` ends with RankLost when one of them ends, or gives no sign
    of life within `limit_s`. When this process ends, however it does, they end too.
    """

    def __init__(self, tp_size: int, command: Sequence[str], limit_s: float) -> None:
        """Starts them. Raises RankLost when one does not come within a minute."""
        assert tp_size > 1, tp_size
        self.tp_size = tp_size
        self.lost: Future[None] = Future()
        self._limit_s = limit_s
        self._closed = threading.Event()
        self.memory = SharedMemory.create()
        self._members = _start(tp_size, command, limit_s, self.memory)
        for rank, member in self._members.items():
            threading.Thread(target=self._watch, args=(rank, member.life), name=f"rank {rank}", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of ranks 1, 2, ..."""
        return tuple(member.process.pid for member in self._members.values())

    def introduce(self, about: Mapping[str, object]) -> None:
        """What every rank must know first, as JSON. Raises RankLost."""
        for rank, member in self._members.items():
            with self._losing(rank):
                member.orders.put_bytes(json.dumps(about).encode())

    def tell(self, order: Order, values: IntArray) -> None:
        """Has every rank carry out an order; returns when it is on its way. Raises RankLost."""
        if self.lost.done():
            self.lost.result()
        for rank, member in self._members.items():
            with self._losing(rank):
                member.orders.put(order, values)

    def answers(self, within_s: float | None = None) -> list[bytes]:
        """What ranks 1, 2, ... answer to the order given last; all that was given before it has been done then.

        Raises RankLost.
        """
        found = []
        for rank, member in self._members.items():
            with self._losing(rank):
                found.append(member.orders.take_bytes(self._limit_s if within_s is None else within_s))
        return found

    def close(self) -> None:
        """Ends them."""
        self._closed.set()
        for member in self._members.values():
            member.process.kill()
            member.process.wait()
            member.orders.close()
            member.life.close()
        self.memory.close()

    @contextmanager
    def _losing(self, rank: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RankLost(f"rank {rank} of {self.tp_size} is gone: {error}") from error

    def _watch(self, rank: int, life: Frames) -> None:
        """Asks for a sign of life at every beat; a rank that computes gives it all the same."""
        try:
            while not self._closed.wait(_BEAT_S):
                life.put_bytes(b"?")
                life.take_bytes(self._limit_s)
        except OSError as error:
            if not self._closed.is_set() and not self.lost.done():
                log.error("rank %d of %d is gone: %s", rank, self.tp_size, error)
                self.lost.set_exception(RankLost(f"rank {rank} of {self.tp_size} is gone: {error}"))


def _start(tp_size: int, command: Sequence[str], limit_s: float, memory: SharedMemory) -> dict[int, _Member]:
    """Starts ranks 1, 2, ... and takes two connections of each."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(_BEAT_S)
        secret = secrets.token_hex(16)
        port = listening.getsockname()[1]
        processes = {
            rank: subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, RANK_VARIABLE: f"127.0.0.1 {port} {rank} {memory.descriptor} {secret}"},
                pass_fds=(memory.descriptor,),
            )
            for rank in range(1, tp_size)
        }
        try:
            ends = _take_connections(listening, processes, secret, limit_s)
        except BaseException:
            for process in processes.values():
                process.kill()
                process.wait()
            raise
    return {rank: _Member(process, ends[rank, "orders"], ends[rank, "life"]) for rank, process in processes.items()}


def _take_connections(
    listening: socket.socket, processes: Mapping[int, "subprocess.Popen[bytes]"], secret: str, limit_s: float
) -> dict[tuple[int, str], Frames]:
    """Two of each process; whoever else knocks is turned away. Raises RankLost."""
    ends: dict[tuple[int, str], Frames] = {}
    give_up_at = time.monotonic() + _START_S
    while len(ends) < 2 * len(processes):
        for rank, process in processes.items():
            if (code := process.poll()) is not None:
                raise RankLost(f"rank {rank} ended with {code} before it was there")
        if time.monotonic() > give_up_at:
            raise RankLost(f"not all of {len(processes)} ranks came within {_START_S:.0f} s")
        try:
            connection, _ = listening.accept()
        except TimeoutError:
            continue
        frames = Frames(connection, limit_s)
        try:
            told, rank_text, purpose = frames.take_bytes().decode().split()
        except (OSError, ValueError):
            frames.close()
            continue
        if secrets.compare_digest(told, secret):
            ends[int(rank_text), purpose] = frames
        else:
            frames.close()
    return ends
