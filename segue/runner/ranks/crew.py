"""Rank 0's ends: starts the other ranks of its worker, gives them orders, and watches whether they live."""

import contextlib
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


class Crew:
    """The ranks above 0 of one worker, as processes on this machine, and `memory` that they share.

    `tell` and `answers` belong to the engine thread. `lost` ends with RankLost when one of them ends, or gives no sign
    of life within `limit_s`. When this process ends, however it does, they end too.
    """

    def __init__(self, tp_size: int, command: Sequence[str], limit_s: float, about: Mapping[str, object]) -> None:
        """Starts them; each is told `about`, as JSON, when it comes. `meet` must follow."""
        assert tp_size > 1, tp_size
        self.tp_size = tp_size
        self.lost: Future[None] = Future()
        self.memory = SharedMemory.create()
        self._limit_s = limit_s
        self._closed = threading.Event()
        self._secret = secrets.token_hex(16)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(_BEAT_S)
        port = self._listening.getsockname()[1]
        told = f"127.0.0.1 {port} {{}} {self.memory.descriptor} {self._secret}"
        self._processes = {
            rank: subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                env={**os.environ, RANK_VARIABLE: told.format(rank)},
                pass_fds=(self.memory.descriptor,),
            )
            for rank in range(1, tp_size)
        }
        self._orders: dict[int, Frames] = {}
        self._lives: dict[int, Frames] = {}
        self._coming: Future[None] = Future()
        threading.Thread(target=self._receive, args=(json.dumps(about).encode(),), name="ranks", daemon=True).start()

    def meet(self) -> None:
        """Returns when all have come. Raises RankLost when one does not within a minute."""
        self._coming.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of ranks 1, 2, ..."""
        return tuple(process.pid for process in self._processes.values())

    def tell(self, order: Order, values: IntArray) -> None:
        """Has every rank carry out an order; returns when it is on its way. Raises RankLost."""
        if self.lost.done():
            self.lost.result()
        for rank, orders in self._orders.items():
            with self._losing(rank):
                orders.put(order, values)

    def answers(self, within_s: float | None = None) -> list[bytes]:
        """What ranks 1, 2, ... answer to the order given last; all that was given before it has been done then.

        Raises RankLost.
        """
        found = []
        for rank, orders in self._orders.items():
            with self._losing(rank):
                found.append(orders.take_bytes(self._limit_s if within_s is None else within_s))
        return found

    def close(self) -> None:
        """Ends them."""
        self._closed.set()
        for process in self._processes.values():
            process.kill()
            process.wait()
        # Whoever received them is done, because nobody can come any more.
        self._coming.exception()
        for frames in (*self._orders.values(), *self._lives.values()):
            frames.close()
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

    def _receive(self, about: bytes) -> None:
        """Two connections of each process; whoever else knocks is turned away."""
        try:
            with self._listening:
                give_up_at = time.monotonic() + _START_S
                while len(self._orders) + len(self._lives) < 2 * len(self._processes):
                    self._require_coming(give_up_at)
                    with contextlib.suppress(TimeoutError):
                        self._let_in(Frames(self._listening.accept()[0], self._limit_s), about)
        except RankLost as error:
            self._coming.set_exception(error)
            return
        self._coming.set_result(None)
        for rank, life in self._lives.items():
            threading.Thread(target=self._watch, args=(rank, life), name=f"rank {rank}", daemon=True).start()

    def _require_coming(self, give_up_at: float) -> None:
        for rank, process in self._processes.items():
            if (code := process.poll()) is not None:
                raise RankLost(f"rank {rank} of {self.tp_size} ended with {code} before it was there")
        if time.monotonic() > give_up_at:
            raise RankLost(f"not all of {self.tp_size} ranks came within {_START_S:.0f} s")

    def _let_in(self, frames: Frames, about: bytes) -> None:
        try:
            told, rank, purpose = frames.take_bytes().decode().split()
            if secrets.compare_digest(told, self._secret) and int(rank) in self._processes:
                if purpose == "life":
                    self._lives[int(rank)] = frames
                else:
                    self._orders[int(rank)] = frames
                    frames.put_bytes(about)
                return
        except (OSError, ValueError):
            # Its process, if it was one of ours, is looked at anyway.
            pass
        frames.close()
