"""State tensors in the forms that kernels index, made once per storage instead of once per layer and step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.state.storage import Storage


@dataclass(frozen=True, slots=True)
class StateMemory:
    """One state tensor of one layer. A block is what one head group of one page or slot holds."""

    whole: Tensor
    """As the storage shows it: [units, head groups, ...]."""
    blocks: Tensor
    """[units * head groups, elements]: each block as a row."""
    rows: Tensor | None
    """[rows, size of the last axis]: all vectors of the last axis from the first on, with whatever lies between two
    blocks. None where blocks do not start a whole number of vectors apart.
    """
    block_rows: int
    """Rows from one block to the next."""

    @staticmethod
    def of(whole: Tensor) -> "StateMemory":
        size, stride = whole.shape[-1], whole.stride(1)
        blocks = whole.view(-1, whole[0, 0].numel())
        rows = None
        if stride % size == 0:
            count = ((blocks.shape[0] - 1) * stride + blocks.shape[1]) // size
            rows = torch.as_strided(whole, (count, size), (size, 1), whole.storage_offset())
        return StateMemory(whole, blocks, rows, stride // size)

    @property
    def vectors(self) -> Tensor:
        """`rows`, where the layout is known to allow them."""
        assert self.rows is not None, (
            f"blocks {self.whole.stride(1)} apart are no whole vectors of {self.whole.shape[-1]}"
        )
        return self.rows


class MemoryViews:
    """All state tensors of one storage, by layer and name."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._found: dict[tuple[int, str], StateMemory] = {}

    def get(self, layer: int, name: str) -> StateMemory:
        found = self._found.get((layer, name))
        if found is None:
            view = self.storage.view(layer, name)
            # Copied and selected by their bits, which every device can.
            whole = view.view(torch.int8) if view.dtype is torch.float8_e4m3fn else view
            found = self._found[layer, name] = StateMemory.of(whole)
        return found
