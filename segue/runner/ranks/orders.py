"""What rank 0 has the other ranks of its worker do, as rows of 64-bit integers.

Orders are carried out in the order in which they are given, beside rank 0's own doing of the same. Those whose end
nothing else shows are answered by every rank.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum

import numpy as np
import torch

from segue.batch.step import IntArray
from segue.runner.context import ReplayRows, StepContext
from segue.state.rings import Rings
from segue.state.spec import ComponentName
from segue.state.storage import Storage


class Order(IntEnum):
    """Kinds of orders. The integers that go with each are what its encoder below puts together."""

    BUILD = 1
    MEET = 2
    ALLOCATE = 3
    COMPUTE = 4
    FOLD = 5
    SETTLE = 6


COMPONENTS = tuple(ComponentName)


class Reader:
    """Takes integers from the front of an order."""

    def __init__(self, values: IntArray) -> None:
        self._values, self._at = values, 0

    def one(self) -> int:
        return int(self.some(1)[0])

    def some(self, count: int) -> IntArray:
        taken = self._values[self._at : self._at + count]
        assert len(taken) == count, "an order ends too early"
        self._at += count
        return taken

    def counted(self) -> IntArray:
        """As many as the next integer says."""
        return self.some(self.one())

    @property
    def ended(self) -> bool:
        return self._at == len(self._values)

    def end(self) -> None:
        assert self.ended, "an order has more than was read"


def counted(*parts: Sequence[int] | IntArray) -> IntArray:
    """The parts one after another, each behind its length."""
    rows: list[IntArray] = []
    for part in parts:
        rows += [np.array([len(part)], dtype=np.int64), np.asarray(part, dtype=np.int64)]
    return np.concatenate(rows)


def encode_allocation(
    counts: Mapping[ComponentName, int], ring_rows: int, ring_length: int, handles: Sequence[IntArray]
) -> IntArray:
    """Units of each component (0: the model has none), ring rows and ring length.

    `handles` lead to the memory of ranks 1, 2, ... where each has its own.
    """
    return counted([*(counts.get(name, 0) for name in COMPONENTS), ring_rows, ring_length], *handles)


def decode_allocation(values: IntArray, rank: int) -> tuple[dict[ComponentName, int], int, int, IntArray | None]:
    """The values of `encode_allocation`, of the handles that of one rank."""
    reader = Reader(values)
    *counts, ring_rows, ring_length = reader.counted().tolist()
    handles = []
    while not reader.ended:
        handles.append(reader.counted())
    return dict(zip(COMPONENTS, counts, strict=True)), ring_rows, ring_length, handles[rank - 1] if handles else None


def encode_step(step: StepContext) -> IntArray:
    """A whole step but for its storage, which every rank has its own of."""
    replay: list[Sequence[int] | IntArray] = []
    if step.replay is not None:
        replay = [_integers(step.replay.rows), _integers(step.replay.cursors), _integers(step.replay.folds)]
    return counted(
        [step.page_tokens, step.decode_rows, step.full_pages.shape[1], step.window_pages.shape[1]],
        _integers(step.token_ids),
        _integers(step.positions),
        step.row_starts,
        step.depths,
        _integers(step.full_pages),
        _integers(step.window_pages),
        step.window_first,
        _integers(step.slots),
        _integers(step.logit_rows),
        *replay,
    )


def decode_step(values: IntArray, storage: Storage, rings: Rings | None, device: torch.device) -> StepContext:
    """The step of `encode_step`, over this rank's storage and rings."""
    reader = Reader(values)
    page_tokens, decode_rows, full_columns, window_columns = reader.counted().tolist()
    token_ids, positions, starts, depths = (reader.counted() for _ in range(4))
    full, window, first, slots, logit_rows = (reader.counted() for _ in range(5))
    rows = len(depths)

    def tensor(given: IntArray) -> torch.Tensor:
        return torch.from_numpy(given.copy()).to(device)

    replay = None
    if rings is not None and decode_rows:
        ring_rows, cursors, folds = (tensor(reader.counted()) for _ in range(3))
        replay = ReplayRows(rings, ring_rows, cursors.to(torch.int32), folds.to(torch.bool))
    reader.end()
    return StepContext(
        storage=storage,
        page_tokens=page_tokens,
        token_ids=tensor(token_ids),
        positions=tensor(positions),
        row_starts=tuple(starts.tolist()),
        depths=tuple(depths.tolist()),
        decode_rows=decode_rows,
        full_pages=tensor(full).view(rows, full_columns),
        window_pages=tensor(window).view(rows, window_columns),
        window_first=tuple(first.tolist()),
        slots=tensor(slots),
        logit_rows=tensor(logit_rows),
        replay=replay,
    )


def _integers(tensor: torch.Tensor) -> IntArray:
    found: IntArray = tensor.detach().to("cpu", torch.int64).reshape(-1).numpy()
    return found
