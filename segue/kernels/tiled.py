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

from segue.kernels.attention.component import PagedComponent
from segue.kernels.attention.stored import stored_key_values
from segue.kernels.convolution import shifted
from segue.kernels.gated_delta import step as single_step
from segue.kernels.gated_delta.inputs import DeltaInputs
from segue.kernels.gated_delta.step import SlotRows
from segue.kernels.interface import AttentionMemory, DeltaMemory, LengthFloor, Matrix
from segue.kernels.matrix.blocks import BlockMatrix
from segue.kernels.matrix.tiled import TiledMatrix
from segue.kernels.memory import MemoryViews
from segue.kernels.rows import TokenPlaces
from segue.kernels.scratch import Scratch
from segue.runner.context import StepContext
from segue.state.spec import MATRIX, ComponentName


class TokenPlan:
    """What the attention layers of one component share in a step: each token as a decode batch of its own."""

    def __init__(self, tokens: TokenPlaces, component: PagedComponent, layer: int) -> None:
        self.stored = stored_key_values(component, tokens, layer)
        self.tokens = [self.stored.batch(tokens.at(slice(token, token + 1))) for token in range(len(tokens.rows))]


class TokenMixing:
    """Token mixing of one step, token by token."""

    def __init__(self, step: StepContext, memory: MemoryViews, scratch: Scratch) -> None:
        self._step, self._memory, self._scratch = step, memory, scratch
        self._tokens = TokenPlaces.of(step)
        self._plans: dict[ComponentName, TokenPlan] = {}
        self._slots: list[SlotRows] | None = None

    def attend(self, memory: AttentionMemory, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        layer, scale = memory.layer, memory.scale
        plan = self._plans.get(memory.component)
        if plan is None:
            component = PagedComponent.of(self._step, self._memory, self._scratch, memory, query, key)
            plan = self._plans[memory.component] = TokenPlan(self._tokens, component, layer)
        plan.stored.write(layer, key, value)
        # All keys of the step are stored before the first token attends, and a token is given only those up to its own.
        return torch.cat([token.attend(layer, query[i : i + 1], scale) for i, token in enumerate(plan.tokens)])

    def convolve(self, memory: DeltaMemory, columns: Tensor, taps: Sequence[Tensor]) -> Tensor:
        return shifted.convolve(self._step, self._memory.get(memory.layer, "conv").whole, columns, taps)

    def delta(self, memory: DeltaMemory, inputs: DeltaInputs) -> Tensor:
        matrix = self._memory.get(memory.layer, MATRIX)
        if self._slots is None:
            self._slots = [SlotRows.of(slot, matrix) for slot in self._step.slots.split(1)]
        parts = [
            single_step.decode(inputs.at(slice(index, index + 1)), matrix, self._slots[row], self._scratch)
            for index, row in enumerate(self._tokens.rows.tolist())
        ]
        return torch.cat(parts)


class TiledKernels:
    """Operations whose result for a row is the same bits at any place in any batch; fp32 on the CPU."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._memory: MemoryViews | None = None

    def begin(self, step: StepContext) -> TokenMixing:
        assert step.replay is None, "when a matrix was written last changes the last bits of what is read from it"
        if self._memory is None or self._memory.storage is not step.storage:
            self._memory = MemoryViews(step.storage)
        return TokenMixing(step, self._memory, self._scratch)

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
