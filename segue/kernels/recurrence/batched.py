"""The recurrences in plain torch, all rows and heads of a step at once, on any device but without graphs.

Which rows flush is decided on the host: matrices of the others are read where they lie and not written.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segue.ids import SINK
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentMemory, Ring
from segue.kernels.recurrence.rule import Rule
from segue.kernels.scratch import Scratch


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step, none of them padding, as all its layers see them."""

    places: SlotRows
    slots: Tensor  # [rows] int64
    rings: Tensor  # [rows] int64: ring row of each; 0 where there are no records and none is written
    cursors: Tensor  # [rows] int64: records of each row's slot
    records_max: int
    flushed: tuple[int, ...]  # rows that write their matrix
    kept: Tensor  # [kept] int64: the other rows

    @staticmethod
    def of(slots: Tensor, rings: Tensor, cursors: Tensor, flush: Tensor, memory: RecurrentMemory) -> "StepRows":
        """`cursors` of all slots, `flush` of each row."""
        records = cursors[slots].long()
        writes = flush | (records >= memory.length - 1)
        return StepRows(
            SlotRows.of(slots, memory.matrix),
            slots.long(),
            rings.long(),
            records,
            int(records.max()),
            tuple(writes.nonzero().flatten().tolist()),
            writes.logical_not().nonzero().flatten(),
        )


@dataclass(frozen=True, slots=True)
class Past:
    """Records of some ring rows, zero from each one's cursor on; weighted by the decay of the steps after each.

    Where that is one number it weighs the corrections, else the keys.
    """

    total: Tensor  # [rows, groups, heads, 1, 1 or key dim]: the sum of log decays
    keys: Tensor  # [rows, groups, 1 or heads, records, key dim]
    corrections: Tensor  # [rows, groups, heads, records, value dim]

    @staticmethod
    def of(rule: Rule, ring: Ring, rings: Tensor, cursors: Tensor, records_max: int) -> "Past":
        """`cursors` of these ring rows, of which records_max is the largest."""
        held = torch.arange(records_max, device=rings.device) < cursors.unsqueeze(1)

        def records(tensor: Tensor) -> Tensor:
            # What lies past a cursor is anything, and nothing times zero is not always zero.
            taken = tensor[:, :, :records_max].index_select(0, rings).float()
            mask = held.view(len(held), 1, records_max, *(1,) * (taken.dim() - 3))
            return taken.masked_fill_(~mask, 0.0)

        keys = records(ring.keys).unsqueeze(2)
        corrections = records(ring.corrections).transpose(2, 3)
        sums = records(ring.log_decays).transpose(2, 3)
        sums = sums if rule.vector_decay else sums.unsqueeze(-1)  # [rows, groups, heads, records, 1 or key dim]
        last = (cursors - 1).clamp(min=0).view(-1, 1, 1, 1, 1).expand(*sums.shape[:3], 1, sums.shape[4])
        # Rows without records have zeros there.
        total = sums.gather(3, last)
        weights = (total - sums).masked_fill_(~held.view(len(held), 1, 1, records_max, 1), 0.0).exp_()
        if rule.vector_decay:
            return Past(total, keys * weights, corrections)
        return Past(total, keys, corrections * weights)

    def fold(self, row: int, state: Tensor) -> None:
        """Folds the records of a row into its state [groups, heads, key dim, value dim], in place."""
        state.mul_(self.total[row].exp().transpose(-1, -2))
        state.add_(self.keys[row].transpose(-1, -2) @ self.corrections[row])


def decode(
    rule: Rule,
    inputs: RecurrentInputs,
    memory: RecurrentMemory,
    slots: Tensor,
    rings: Tensor,
    cursors: Tensor,
    flush: Tensor,
) -> Tensor:
    """One token a row: reads like inputs.value, matrix or ring moved on; cursors stay as they are.

    slots [rows]: the sink and below is padding, which reads zeros. rings [rows]: the ring row of each, 0 where there
    are no records and none is written; not looked at where all matrices are written. cursors [slots] int32: records of
    each slot. flush [rows] bool: rows that write their matrix in this step whatever their cursor.
    """
    live = (slots > SINK).nonzero().flatten()
    if len(live) == len(slots):
        return step(rule, inputs, memory, StepRows.of(slots, rings, cursors, flush, memory), Scratch())
    out = torch.zeros_like(inputs.value)
    if len(live):
        rows = StepRows.of(slots[live], rings[live], cursors, flush[live], memory)
        out[live] = step(rule, inputs.at(live), memory, rows, Scratch())
    return out


def step(rule: Rule, inputs: RecurrentInputs, memory: RecurrentMemory, rows: StepRows, scratch: Scratch) -> Tensor:
    """As `decode`, of rows that other layers share.

    Both reads, for the correction and for the output, come from the state before the token:
    S_t^T q = S_{t-1}^T (a * q) + (k . q) d.
    """
    value, heads = inputs.value, inputs.value.shape[2]
    decay = inputs.log_decay.exp()
    # [rows, groups, heads, 1, 1 or key dim]
    decay = decay.unsqueeze(3) if rule.vector_decay else decay.unsqueeze(3).unsqueeze(4)
    probes = torch.stack([inputs.query, inputs.key] if rule.corrected else [inputs.query], 2)
    probes = probes.unsqueeze(2).expand(-1, -1, heads, -1, -1)
    if rule.vector_decay:
        probes = probes * decay
    past = None
    if memory.ring is not None and rows.records_max:
        past = Past.of(rule, memory.ring, rows.rings, rows.cursors, rows.records_max)
    reads = _read(rule, probes, memory, past, rows, scratch)
    if not rule.vector_decay:
        reads = reads * decay
    correction = value
    if rule.corrected:
        correction = correction - reads[..., 1, :]
    correction = correction * inputs.beta.unsqueeze(3)
    overlap = (inputs.query * inputs.key).sum(2).unsqueeze(2).unsqueeze(3)
    out = reads[..., 0, :].addcmul(correction, overlap)
    if inputs.skip is not None:
        out.addcmul_(inputs.skip.unsqueeze(2), value)
    _write(inputs, correction, decay, memory, past, rows)
    return out


def materialize(rule: Rule, layers: Sequence[RecurrentMemory], slots: Tensor, rings: Tensor, cursors: Tensor) -> None:
    """Folds the rings of some slots, in all layers, into their matrices and sets their cursors to 0."""
    chosen = (slots > SINK) & (cursors[slots.clamp(min=SINK)] > 0)
    pending, rings = slots[chosen].long(), rings[chosen].long()
    if not len(pending):
        return
    records = cursors[pending].long()
    for memory in layers:
        assert memory.ring is not None, "a cursor moved without a ring"
        past = Past.of(rule, memory.ring, rings, records, int(records.max()))
        for row, slot in enumerate(pending.tolist()):
            past.fold(row, memory.matrix.whole[slot])
    cursors[pending] = 0


def advance(cursors: Tensor, slots: Tensor, flush: Tensor, length: int) -> None:
    """After all layers of a step: 0 for the slots of rows that wrote their matrix, one more for those of the others."""
    live = slots > SINK
    places = slots[live].long()
    records = cursors[places]
    cursors[places] = torch.where(flush[live] | (records >= length - 1), 0, records + 1)


def _read(
    rule: Rule, probes: Tensor, memory: RecurrentMemory, past: Past | None, rows: StepRows, scratch: Scratch
) -> Tensor:
    """S^T p for every probe [rows, groups, heads, probes, key dim]; S is matrix and records before the step."""
    if past is None:
        return _read_matrix(probes, memory, rows, scratch)
    inside = probes @ past.keys.transpose(-1, -2) @ past.corrections
    if rule.vector_decay:
        return _read_matrix(probes * past.total.exp(), memory, rows, scratch) + inside
    return _read_matrix(probes, memory, rows, scratch) * past.total.exp() + inside


def _read_matrix(probes: Tensor, memory: RecurrentMemory, rows: StepRows, scratch: Scratch) -> Tensor:
    """S^T p of the matrices alone: as sums of their rows where they lie, else as products of a copy."""
    matrix, count = memory.matrix, probes.shape[3]
    shape = (*probes.shape[:4], matrix.whole.shape[4])
    if matrix.rows is not None:
        key_dim = matrix.whole.shape[3]
        vectors = rows.places.vectors.view(-1, 2, key_dim)[:, :count].flatten()
        starts = rows.places.reads[: len(vectors) // key_dim]
        bags: Tensor = torch.embedding_bag(matrix.rows, vectors, starts, False, 0, False, probes.flatten())[0]
        return bags.view(shape)
    flat = probes.reshape(-1, count, probes.shape[4])
    gathered = scratch.gather("matrix", matrix.blocks, rows.places.blocks, (len(flat), *matrix.whole.shape[3:]))
    return torch.bmm(flat, gathered).view(shape)


def _write(
    inputs: RecurrentInputs,
    correction: Tensor,
    decay: Tensor,
    memory: RecurrentMemory,
    past: Past | None,
    rows: StepRows,
) -> None:
    """The step into the matrices of flushed rows, with what their rings hold, and into the rings of the others."""
    key = inputs.key.unsqueeze(2).unsqueeze(4)  # [rows, groups, 1, key dim, 1]
    decay, change = decay.transpose(-1, -2), correction.unsqueeze(3)
    if memory.ring is None:
        for run in rows.places.runs:
            memory.matrix.whole[run.slots].mul_(decay[run.rows]).addcmul_(key[run.rows], change[run.rows])
        return
    for row, slot in zip(rows.flushed, rows.slots[list(rows.flushed)].tolist(), strict=True):
        state = memory.matrix.whole[slot]
        if past is not None:
            past.fold(row, state)
        state.mul_(decay[row]).addcmul_(key[row], change[row])
    kept, ring = rows.kept, memory.ring
    rings, cursors = rows.rings[kept], rows.cursors[kept]
    total = inputs.log_decay[kept]
    if past is not None:
        total = total + past.total[kept].reshape(total.shape)
    ring.corrections[rings, :, cursors] = correction[kept].to(ring.corrections.dtype)
    ring.keys[rings, :, cursors] = inputs.key[kept].to(ring.keys.dtype)
    ring.log_decays[rings, :, cursors] = total
