"""The fast kernels: decode rows as one batch, extended rows one after another in blocks, plain matrix products.

Runs on any device. A token's result may differ in its last bits with the batch it ran in.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from segue.kernels.attention.decoding import DecodeBatch
from segue.kernels.attention.extending import ExtendRow
from segue.kernels.attention.paging import PageTable, WritePlaces, clear_new_pages
from segue.kernels.convolution import shifted
from segue.kernels.gated_delta import chunk
from segue.kernels.gated_delta import step as single_step
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.interface import AttentionMemory, DeltaMemory, LengthFloor, Matrix
from segue.kernels.matrix.blocks import BlockMatrix
from segue.kernels.matrix.plain import PlainMatrix
from segue.kernels.rows import TokenPlaces, extended_rows
from segue.kernels.scratch import Scratch
from segue.runner.context import StepContext
from segue.state.spec import ComponentName


class PagedPlan:
    """What the attention layers of one component share in a step."""

    def __init__(
        self, step: StepContext, tokens: TokenPlaces, memory: AttentionMemory, heads: int, dtype: torch.dtype
    ) -> None:
        table = PageTable.of(step, memory.component)
        clear_new_pages(step, table)
        self.places = WritePlaces.of(table, tokens, heads)
        rows, window = step.decode_rows, memory.window
        self.decode = DecodeBatch.of(table, tokens.positions[:rows], heads, window, dtype) if rows else None
        self.extended = [
            (span, ExtendRow.of(table, row, step.depths[row], span.stop - span.start, heads, window, dtype))
            for row, span in extended_rows(step)
        ]


class BatchedMixing:
    """Token mixing of one step."""

    def __init__(self, step: StepContext, scratch: Scratch) -> None:
        self._step, self._scratch = step, scratch
        self._tokens = TokenPlaces.of(step)
        self._plans: dict[ComponentName, PagedPlan] = {}
        self._slots: SlotRows | None = None

    def attend(self, memory: AttentionMemory, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        storage, rows = self._step.storage, self._step.decode_rows
        keys, values = storage.view(memory.layer, "k"), storage.view(memory.layer, "v")
        plan = self._plans.get(memory.component)
        if plan is None:
            plan = self._plans[memory.component] = PagedPlan(self._step, self._tokens, memory, key.shape[1], key.dtype)
        plan.places.write(keys, key)
        plan.places.write(values, value)
        if plan.decode and not plan.extended:
            return plan.decode.attend(memory, query, keys, values, self._scratch)
        parts = [plan.decode.attend(memory, query[:rows], keys, values, self._scratch)] if plan.decode else []
        parts += [row.attend(memory, query[span], keys, values, self._scratch) for span, row in plan.extended]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def convolve(self, memory: DeltaMemory, columns: Tensor, taps: Tensor) -> Tensor:
        return shifted.convolve(self._step, self._step.storage.view(memory.layer, "conv"), columns, taps)

    def delta(self, memory: DeltaMemory, inputs: DeltaInputs) -> Tensor:
        step, rows = self._step, self._step.decode_rows
        matrix = step.storage.view(memory.layer, "matrix")
        parts: list[Tensor] = []
        if rows:
            if self._slots is None:
                self._slots = SlotRows.of(step.slots[:rows], matrix.shape[1])
            decoded = inputs if rows == step.row_count else inputs.at(slice(rows))
            parts.append(single_step.decode(decoded, matrix, self._slots, self._scratch))
        for row, span in extended_rows(step):
            parts.append(chunk.extend(inputs.at(span), matrix[step.slots[row]], step.depths[row]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class BatchedKernels:
    """The fast operations."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._scratch = Scratch()

    def begin(self, step: StepContext) -> BatchedMixing:
        return BatchedMixing(step, self._scratch)

    def matrix(self, parts: Sequence[Tensor]) -> Matrix:
        if self._device.type == "cpu":
            return BlockMatrix(parts, self._dtype)
        return PlainMatrix(parts, self._dtype, self._device)

    def length(self, x: Tensor, floor: LengthFloor) -> Tensor:
        return torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32), floor.root)

    def silu(self, x: Tensor) -> Tensor:
        return silu(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def softplus(self, x: Tensor) -> Tensor:
        return softplus(x)
