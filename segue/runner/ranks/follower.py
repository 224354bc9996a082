"""A rank above 0: a process that carries out what rank 0 orders, one thing after the other. Decides nothing."""

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from segue.batch.step import IntArray
from segue.ids import Slot
from segue.kernels.recurrence.replaying import RingFolds
from segue.runner.context import Model
from segue.runner.ranks.crew import RANK_VARIABLE
from segue.runner.ranks.frames import Frames
from segue.runner.ranks.memory import SharedMemory
from segue.runner.ranks.orders import COMPONENTS, Order, Reader, decode_step
from segue.state.layout import Shard, layouts
from segue.state.rings import Rings
from segue.state.spec import ComponentName
from segue.state.storage import Storage, arena_bytes

Answer = bytes | None


@dataclass(frozen=True, slots=True)
class Call:
    """How a rank was called: its number, the memory that it shares, and its two connections to rank 0."""

    rank: int
    memory: SharedMemory
    orders: Frames
    life: Frames


class Follower:
    """One rank's model, and the state that rank 0 manages."""

    def __init__(
        self, model: Model, shard: Shard, page_tokens: int, memory: SharedMemory, meet: Callable[[], None]
    ) -> None:
        """`memory` is that of the whole worker; `meet` joins the group that the model sums over."""
        self._model, self._shard, self._page_tokens, self._memory = model, shard, page_tokens, memory
        self.meet = meet
        self._storage: Storage | None = None
        self._rings: Rings | None = None
        self._folds: RingFolds | None = None
        self._handlers: dict[Order, Callable[[IntArray], Answer]] = {
            Order.HOLD: self._hold,
            Order.COMPUTE: self._compute,
            Order.FOLD: self._fold,
        }

    @property
    def storage(self) -> Storage:
        assert self._storage is not None, "an order came before HOLD"
        return self._storage

    def carry_out(self, order: Order, values: IntArray) -> Answer:
        """Does it; the bytes that rank 0 waits for, None where it does not."""
        return self._handlers[order](values)

    def _hold(self, values: IntArray) -> Answer:
        """Allocates state: units of each component (0: the model has none), ring rows and ring length, slots."""
        reader = Reader(values)
        counts = dict(zip(COMPONENTS, reader.some(len(COMPONENTS)).tolist(), strict=True))
        ring_rows, ring_length = reader.some(2).tolist()
        reader.end()
        state, device = self._model.state, self._model.device
        ours = layouts(state, self._page_tokens, self._shard)
        size = arena_bytes(ours, counts)
        arena = self._memory.map(self._shard.tp_size * size)[self._shard.tp_rank * size :][:size]
        self._storage = Storage(ours, counts, device, arena)
        if ring_rows:
            slots = counts[ComponentName.RECURRENT]
            self._rings = Rings(state.records, ring_length, ring_rows, slots, device, self._shard)
            self._folds = RingFolds(self._rings, self._storage, state.records)
        return b"held"

    def _compute(self, values: IntArray) -> Answer:
        self._model.forward(decode_step(values, self.storage, self._rings, self._model.device))
        return None

    def _fold(self, values: IntArray) -> Answer:
        assert self._folds is not None, "there are no rings to fold"
        slot, row, count = values.tolist()
        self._folds.fold(Slot(slot), row, count)
        return b"folded"


def answer_call() -> Call:
    """Connects to the rank 0 that started this process, and gives signs of life from now on."""
    host, port, rank, memory, secret = os.environ.pop(RANK_VARIABLE).split()
    ends = {}
    for purpose in ("orders", "life"):
        ends[purpose] = Frames(socket.create_connection((host, int(port))))
        ends[purpose].put_bytes(f"{secret} {rank} {purpose}".encode())
    threading.Thread(target=_live, args=(ends["life"],), name="life", daemon=True).start()
    return Call(int(rank), SharedMemory(int(memory)), ends["orders"], ends["life"])


def follow(call: Call, make: Callable[[dict[str, object], Call], Follower]) -> None:
    """Carries out orders until rank 0 ends. `make` builds the rank from what rank 0 says first."""
    with contextlib.suppress(ConnectionError):
        follower = make(json.loads(call.orders.take_bytes()), call)
        call.orders.put_bytes(b"built")
        follower.meet()
        while True:
            order, values = call.orders.take()
            if (answer := follower.carry_out(Order(order), values)) is not None:
                call.orders.put_bytes(answer)


def _live(life: Frames) -> None:
    """Whatever the other threads do: this process ends with rank 0."""
    with contextlib.suppress(OSError):
        while True:
            life.put_bytes(life.take_bytes())
    os._exit(1)
