"""The deterministic kernels for the CPU: a token's result and state are the same bits whatever batch it ran in.

Three things make a token's numbers depend on its neighbours, and each has its answer here. A matrix product picks
its order of sums by the number of rows: rows are multiplied in tiles of one fixed height. silu, sigmoid and softplus
take another path in the tail of a vector loop than in its body: they are composed of operations that do not (exp,
log1p, division; a test watches over them). Batched attention and chunked recurrences sum in an order that depends on
the batch: each token is worked on alone, in steps whose shapes follow from its position only.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from segue.kernels.attention.extending import ExtendRow
from segue.kernels.attention.paging import PageTable, WritePlaces, clear_new_pages
from segue.kernels.convolution import shifted
from segue.kernels.gated_delta import step as single_step
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.interface import AttentionMemory, DeltaMemory, LengthFloor, Matrix
from segue.kernels.matrix.blocks import BlockMatrix
from segue.kernels.matrix.tiled import TiledMatrix
from segue.kernels.rows import TokenPlaces, spans
from segue.kernels.scratch import Scratch
from segue.runner.context import StepContext
from segue.state.spec import ComponentName


class TokenPlan:
    """What the attention layers of one component share in a step: each token as an extension of its row by one."""

    def __init__(
        self, step: StepContext, tokens: TokenPlaces, memory: AttentionMemory, heads: int, dtype: torch.dtype
    ) -> None:
        table = PageTable.of(step, memory.component)
        clear_new_pages(step, table)
        self.places = WritePlaces.of(table, tokens, heads)
        self.tokens = [
            ExtendRow.of(table, row, step.depths[row] + index, 1, heads, memory.window, dtype)
            for row, span in enumerate(spans(step))
            for index in range(span.stop - span.start)
        ]


class TokenMixing:
    """Token mixing of one step, token by token."""

    def __init__(self, step: StepContext, scratch: Scratch) -> None:
        self._step, self._scratch = step, scratch
        self._tokens = TokenPlaces.of(step)
        self._plans: dict[ComponentName, TokenPlan] = {}

    def attend(self, memory: AttentionMemory, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        storage = self._step.storage
        keys, values = storage.view(memory.layer, "k"), storage.view(memory.layer, "v")
        plan = self._plans.get(memory.component)
        if plan is None:
            plan = self._plans[memory.component] = TokenPlan(self._step, self._tokens, memory, key.shape[1], key.dtype)
        plan.places.write(keys, key)
        plan.places.write(values, value)
        # All keys of the step are stored before the first token attends, and a token is given only those up to its own.
        return torch.cat(
            [
                token.attend(memory, query[index : index + 1], keys, values, self._scratch)
                for index, token in enumerate(plan.tokens)
            ]
        )

    def convolve(self, memory: DeltaMemory, columns: Tensor, taps: Tensor) -> Tensor:
        return shifted.convolve(self._step, self._step.storage.view(memory.layer, "conv"), columns, taps)

    def delta(self, memory: DeltaMemory, inputs: DeltaInputs) -> Tensor:
        matrix, slots = self._step.storage.view(memory.layer, "matrix"), self._step.slots
        parts = []
        for row, span in enumerate(spans(self._step)):
            slot = SlotRows.of(slots[row : row + 1], matrix.shape[1])
            for token in range(span.start, span.stop):
                parts.append(single_step.decode(inputs.at(slice(token, token + 1)), matrix, slot, self._scratch))
        return torch.cat(parts)


class TiledKernels:
    """Operations whose result for a row is the same bits at any place in any batch; fp32 on the CPU."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    def begin(self, step: StepContext) -> TokenMixing:
        return TokenMixing(step, self._scratch)

    def matrix(self, parts: Sequence[Tensor]) -> Matrix:
        return TiledMatrix(BlockMatrix(parts, torch.float32))

    def length(self, x: Tensor, floor: LengthFloor) -> Tensor:
        # hypot would be one operation, but in the tail of a vector loop it rounds otherwise than in its body.
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return length.square_().add_(floor.square).sqrt_()

    def silu(self, x: Tensor) -> Tensor:
        return x / (1.0 + torch.exp(-x))

    def sigmoid(self, x: Tensor) -> Tensor:
        return 1.0 / (1.0 + torch.exp(-x))

    def softplus(self, x: Tensor) -> Tensor:
        return x.clamp(min=0.0) + torch.log1p(torch.exp(-x.abs()))
