"""The fast kernels: decode rows as one batch, extended rows one after another in blocks, plain matrix products.

Runs on any device. A token's result may differ in its last bits with the batch it ran in.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from segue.kernels.attention.component import PagedComponent
from segue.kernels.attention.extending import ExtendRow
from segue.kernels.attention.lengths import batch_by_length
from segue.kernels.attention.stored import stored_key_values
from segue.kernels.convolution import shifted
from segue.kernels.gated_delta import chunk
from segue.kernels.gated_delta import step as single_step
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.interface import AttentionMemory, DeltaMemory, LengthFloor, Matrix
from segue.kernels.matrix.blocks import BlockMatrix
from segue.kernels.matrix.plain import PlainMatrix
from segue.kernels.memory import MemoryViews
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.replaying import ReplayedStep
from segue.kernels.rows import TokenPlaces, extended_rows
from segue.kernels.scratch import Scratch
from segue.runner.context import StepContext
from segue.state.spec import MATRIX, ComponentName


class PagedPlan:
    """What the attention layers of one component share in a step."""

    def __init__(self, step: StepContext, tokens: TokenPlaces, component: PagedComponent, layer: int) -> None:
        self.stored = stored_key_values(component, tokens, layer)
        rows = step.decode_rows
        self.decode = None
        if rows:
            decoded = tokens.at(slice(rows))
            self.decode = batch_by_length(self.stored, decoded, component.window, component.table.device)
        self.extended = [
            (span, ExtendRow.of(component, row, step.depths[row], span.stop - span.start))
            for row, span in extended_rows(step)
        ]


class BatchedMixing:
    """Token mixing of one step."""

    def __init__(self, step: StepContext, memory: MemoryViews, scratch: Scratch) -> None:
        self._step, self._memory, self._scratch = step, memory, scratch
        self._all_decode = step.decode_rows == step.row_count
        self._tokens = TokenPlaces.of(step)
        self._extended = extended_rows(step)
        self._plans: dict[ComponentName, PagedPlan] = {}
        self._slots: SlotRows | None = None
        self._replayed: ReplayedStep | None = None
        if step.replay is not None:
            self._replayed = ReplayedStep(step.replay, step.slots[: step.decode_rows], memory, scratch)

    def attend(self, memory: AttentionMemory, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer, scale = memory.layer, memory.scale
        plan = self._plans.get(memory.component)
        if plan is None:
            component = PagedComponent.of(self._step, self._memory, self._scratch, memory, query, key)
            plan = self._plans[memory.component] = PagedPlan(self._step, self._tokens, component, layer)
        plan.stored.write(layer, key, value)
        if plan.decode and self._all_decode:
            return plan.decode.attend(layer, query, scale)
        parts: list[Tensor] = []
        if plan.decode:
            parts.append(plan.decode.attend(layer, query[: self._step.decode_rows], scale))
        for span, row in plan.extended:
            parts.append(row.attend(query[span], *plan.stored.gather(layer, row.index), scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def convolve(self, memory: DeltaMemory, columns: Tensor, taps: Sequence[Tensor]) -> Tensor:
        return shifted.convolve(self._step, self._memory.get(memory.layer, "conv").whole, columns, taps)

    def delta(self, memory: DeltaMemory, inputs: DeltaInputs) -> Tensor:
        step, rows = self._step, self._step.decode_rows
        matrix = self._memory.get(memory.layer, MATRIX)
        parts: list[Tensor] = []
        if rows:
            decoded = inputs if self._all_decode else inputs.at(slice(rows))
            if self._replayed is not None:
                parts.append(self._replayed.delta(memory.layer, RecurrentInputs.of(decoded)))
            else:
                if self._slots is None:
                    self._slots = SlotRows.of(step.slots[:rows], matrix)
                parts.append(single_step.decode(decoded, matrix, self._slots, self._scratch))
        for row, span in self._extended:
            parts.append(chunk.extend(inputs.at(span), matrix.whole[step.slots[row]], step.depths[row]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


class BatchedKernels:
    """The fast operations."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._scratch = Scratch()
        self._memory: MemoryViews | None = None

    def begin(self, step: StepContext) -> BatchedMixing:
        if self._memory is None or self._memory.storage is not step.storage:
            self._memory = MemoryViews(step.storage)
        return BatchedMixing(step, self._memory, self._scratch)

    def matrix(self, parts: Sequence[Tensor]) -> Matrix:
        if self._device.type == "cpu":
            return BlockMatrix(parts, self._dtype)
        return PlainMatrix(parts, self._dtype, self._device)

    def length(self, x: Tensor, floor: LengthFloor) -> Tensor:
        return torch.hypot(torch.linalg.vector_norm(x, 2, -1, True, dtype=torch.float32), floor.root)

    def silu(self, x: Tensor) -> Tensor:
        return silu(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def softplus(self, x: Tensor) -> Tensor:
        return softplus(x)
