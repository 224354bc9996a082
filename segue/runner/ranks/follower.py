"""A rank above 0: a process that carries out what rank 0 orders, one thing after the other. Decides nothing."""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from segue.batch.step import IntArray
from segue.ids import Slot
from segue.kernels.recurrence.replaying import RingFolds
from segue.runner.context import Model
from segue.runner.ranks.crew import RANK_VARIABLE
from segue.runner.ranks.device_memory import open_handle
from segue.runner.ranks.frames import Frames
from segue.runner.ranks.memory import SharedMemory
from segue.runner.ranks.orders import Order, decode_allocation, decode_step
from segue.state.layout import Shard, layouts
from segue.state.rings import Rings
from segue.state.spec import ComponentName
from segue.state.storage import Storage, arena_bytes

CarryOut: TypeAlias = Callable[[Order, IntArray], None]
"""What does an order, whatever that takes. Raises RankLost."""


@dataclass(frozen=True, slots=True)
class Call:
    """How a rank was called: its number, the memory that it shares, and its connection to rank 0."""

    rank: int
    memory: SharedMemory
    orders: Frames


class Follower:
    """One rank's model, and the state that rank 0 manages."""

    def __init__(
        self, model: Model, shard: Shard, page_tokens: int, memory: SharedMemory, meet: Callable[[], None]
    ) -> None:
        """`memory` is the whole worker's where it is of the host; `meet` joins the group that the model sums over."""
        self._model, self._shard, self._page_tokens, self._memory = model, shard, page_tokens, memory
        self._storage: Storage | None = None
        self._rings: Rings | None = None
        self._folds: RingFolds | None = None
        self._handlers: dict[Order, Callable[[IntArray], None]] = {
            Order.MEET: lambda _: meet(),
            Order.ALLOCATE: self._allocate,
            Order.COMPUTE: self._compute,
            Order.FOLD: self._fold,
            Order.SETTLE: lambda _: self.storage.regions.settle(),
        }

    @property
    def storage(self) -> Storage:
        assert self._storage is not None, "a step came before ALLOCATE"
        return self._storage

    def carry_out(self, order: Order, values: IntArray) -> None:
        """Does it, whatever that takes. Raises RankLost."""
        self._handlers[order](values)

    def _allocate(self, values: IntArray) -> None:
        """Opens what rank 0 has allocated for this rank."""
        counts, ring_rows, ring_length, handle = decode_allocation(values, self._shard.tp_rank)
        state, device = self._model.state, self._model.device
        ours = layouts(state, self._page_tokens, self._shard)
        size = arena_bytes(ours, counts)
        if handle is None:
            arena = self._memory.map(self._shard.tp_size * size)[self._shard.tp_rank * size :][:size]
        else:
            arena = open_handle(handle, device)
        self._storage = Storage(ours, counts, device, arena)
        if ring_rows:
            slots = counts[ComponentName.RECURRENT]
            self._rings = Rings(state.records, ring_length, ring_rows, slots, device, self._shard)
            self._folds = RingFolds(self._rings, self._storage, state.records)

    def _compute(self, values: IntArray) -> None:
        self._model.forward(decode_step(values, self.storage, self._rings, self._model.device))

    def _fold(self, values: IntArray) -> None:
        assert self._folds is not None, "there are no rings to fold"
        slot, row, count = values.tolist()
        self._folds.fold(Slot(slot), row, count)
        self.storage.regions.settle()


ANSWERED = (Order.BUILD, Order.ALLOCATE, Order.FOLD, Order.SETTLE)
"""Orders whose end rank 0 waits for."""


def answer_call() -> Call:
    """How rank 0 has called this process, to which signs of life are given from now on."""
    rank, memory, orders, life = map(int, os.environ.pop(RANK_VARIABLE).split())
    living = Frames(socket.socket(fileno=life))
    threading.Thread(target=_live, args=(living,), name="life", daemon=True).start()
    return Call(rank, SharedMemory(memory), Frames(socket.socket(fileno=orders)))


def follow(call: Call, make: Callable[[bytes, Call], CarryOut]) -> None:
    """Carries out orders until rank 0 ends. `make` builds the rank from what rank 0 says first. Raises RankLost."""
    with _until_rank_0_ends():
        about = call.orders.take_bytes()
    carry_out, order = make(about, call), Order.BUILD
    while True:
        with _until_rank_0_ends():
            if order in ANSWERED:
                call.orders.put_bytes(order.name.encode())
            number, values = call.orders.take()
        order = Order(number)
        carry_out(order, values)


@contextlib.contextmanager
def _until_rank_0_ends() -> Iterator[None]:
    try:
        yield
    except ConnectionError:
        sys.exit()


def _live(life: Frames) -> None:
    """Whatever the other threads do: this process ends with rank 0."""
    with contextlib.suppress(OSError):
        while True:
            life.put_bytes(life.take_bytes())
    os._exit(os.EX_TEMPFAIL)
