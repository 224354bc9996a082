"""One token a row of the gated delta rule, all rows and heads at once, on matrices kept in slots."""

from dataclasses import dataclass

import torch
from torch import Tensor

from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.memory import StateMemory
from segue.kernels.scratch import Scratch


@dataclass(frozen=True, slots=True)
class Run:
    """Rows of the batch, one after another, whose slots lie one after another too."""

    rows: slice
    slots: slice


@dataclass(frozen=True, slots=True)
class SlotRows:
    """The slots of some rows, as what reads them needs it; the same for all layers."""

    runs: tuple[Run, ...]
    blocks: Tensor  # [rows * groups] int64: numbers of their (slot, group) blocks
    vectors: Tensor  # [rows * groups * heads * 2 * key dim] int64: the matrices' rows, once for each of two reads
    reads: Tensor  # [rows * groups * heads * 2] int64: where each read's part of `vectors` starts

    @staticmethod
    def of(slots: Tensor, memory: StateMemory) -> "SlotRows":
        _, groups, heads, key_dim, _ = memory.whole.shape
        device = slots.device
        blocks = (slots.unsqueeze(1) * groups + torch.arange(groups, device=device)).flatten()
        inside = torch.arange(heads * key_dim, device=device).view(heads, 1, key_dim).expand(-1, 2, -1)
        vectors = (blocks.view(-1, 1, 1, 1) * memory.block_rows + inside).flatten()
        reads = torch.arange(0, vectors.shape[0], key_dim, device=device)
        return SlotRows(_runs(slots.tolist()), blocks, vectors, reads)


def decode(inputs: DeltaInputs, memory: StateMemory, rows: SlotRows, scratch: Scratch) -> Tensor:
    """One token a row; `memory` [slots, groups, heads, key dim, value dim] is read and moved on at the rows' slots.

    Both reads, for the correction and for the output, come from the state before the token:
    S_t^T q = a S_{t-1}^T q + (k . q) d.
    """
    query_key, value = inputs.query_key, inputs.value
    count, groups, heads, value_dim = value.shape
    key_dim = query_key.shape[3]
    decay = inputs.log_decay.exp().view(count, groups, heads, 1, 1)
    reads = _read(query_key, heads, memory, rows, scratch).view(count, groups, heads, 2, value_dim).mul_(decay)
    query_read, key_read = reads.unbind(3)
    correction = (value - key_read).mul_(inputs.beta.unsqueeze(3))
    query, key = query_key.unbind(2)
    overlap = (query * key).sum(2).view(count, groups, 1, 1)
    out = query_read.addcmul(correction, overlap)
    key, correction = key.view(count, groups, 1, key_dim, 1), correction.unsqueeze(3)
    for run in rows.runs:
        state = memory.whole[run.slots]
        state.mul_(decay[run.rows])
        state.addcmul_(key[run.rows], correction[run.rows])
    return out


def _read(query_key: Tensor, heads: int, memory: StateMemory, rows: SlotRows, scratch: Scratch) -> Tensor:
    """S^T q and S^T k of every head: as sums of the matrix's rows where they lie, else as products of a copy."""
    spread = query_key.unsqueeze(2).expand(-1, -1, heads, -1, -1)
    if memory.rows is not None:
        bags: Tensor = torch.embedding_bag(memory.rows, rows.vectors, rows.reads, False, 0, False, spread.flatten())[0]
        return bags
    probes = spread.reshape(-1, 2, query_key.shape[3])
    shape = (probes.shape[0], *memory.whole.shape[3:])
    return torch.bmm(probes, scratch.gather("matrix", memory.blocks, rows.blocks, shape))


def _runs(slots: list[int]) -> tuple[Run, ...]:
    """The batch cut where the next row's slot is not the next slot."""
    starts = [row for row, slot in enumerate(slots) if row == 0 or slot != slots[row - 1] + 1]
    stops = [*starts[1:], len(slots)]
    return tuple(
        Run(slice(start, stop), slice(slots[start], slots[start] + stop - start))
        for start, stop in zip(starts, stops, strict=True)
    )
