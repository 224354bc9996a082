"""Slots of one recurrent layer filled at random, and a step's inputs: what `replay` measures on, and its check."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.refusal import Refused
from segue.kernels.memory import MemoryViews
from segue.kernels.recurrence import reference
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentMemory, RecurrentShape, Ring
from segue.kernels.recurrence.rule import Rule
from segue.state.layout import Shard, layouts
from segue.state.spec import MATRIX, ComponentName, DType, ModelState
from segue.state.storage import Storage

# How far a read may be from the recurrence in float64, by the dtype of the records: what rounding explains.
TOLERANCE = {DType.FLOAT32: 1e-5, DType.BFLOAT16: 1e-2}
CHECKED_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The recurrent layers of a known model."""

    layers: int
    shape: RecurrentShape

    @property
    def matrix_bytes(self) -> int:
        """Of one row in one layer."""
        shape = self.shape
        return 4 * shape.groups * shape.heads * shape.key_dim * shape.value_dim

    @property
    def input_bytes(self) -> int:
        """What a step reads and returns for one row beside state, in fp32."""
        shape = self.shape
        decays = shape.key_dim if shape.rule.vector_decay else 1
        return 4 * shape.groups * (2 * shape.key_dim + shape.heads * (2 * shape.value_dim + decays + 1))

    def record_bytes(self, record_dtype: DType) -> int:
        """Of one row's record in one layer."""
        return sum(tensor.groups * tensor.group_bytes for tensor in self.shape.record(0, record_dtype).tensors)

    def step_bytes(self, length: int, record_dtype: DType) -> float:
        """The fewest bytes that a row's step can move: its mean over a cycle of `length` steps."""
        # After w records, w = 0 .. length - 1: reads them all, and writes one more or the matrix.
        records = ((length - 1) * length / 2 + (length - 1)) / length
        return (1 + 1 / length) * self.matrix_bytes + records * self.record_bytes(record_dtype) + self.input_bytes


GEOMETRIES = {
    "qwen3.5-35b-a3b": Geometry(
        layers=30, shape=RecurrentShape(rule=Rule.GATED_DELTA, groups=16, heads=2, key_dim=128, value_dim=128)
    ),
    "qwen3.8-27b": Geometry(
        layers=48, shape=RecurrentShape(rule=Rule.GATED_DELTA, groups=16, heads=3, key_dim=128, value_dim=128)
    ),
    "kimi-linear-48b-a3b": Geometry(
        layers=20, shape=RecurrentShape(rule=Rule.KIMI_DELTA, groups=32, heads=1, key_dim=128, value_dim=128)
    ),
    # Mamba2 of Nemotron-H 8B: eight groups of B and C, 128 heads of 64.
    "nemotron-h-8b": Geometry(
        layers=24, shape=RecurrentShape(rule=Rule.MAMBA2, groups=8, heads=16, key_dim=128, value_dim=64)
    ),
}


class Decode(Protocol):
    """A step of an implementation under measurement."""

    def __call__(
        self,
        rule: Rule,
        inputs: RecurrentInputs,
        memory: RecurrentMemory,
        slots: Tensor,
        rings: Tensor,
        cursors: Tensor,
        flush: Tensor,
    ) -> Tensor: ...


class Advance(Protocol):
    """What moves cursors on between steps."""

    def __call__(self, cursors: Tensor, slots: Tensor, flush: Tensor, length: int) -> None: ...


class Bed:
    """A storage of one layer with so many rows' slots, matrices random, rings empty."""

    def __init__(
        self, geometry: Geometry, rows: int, length: int, record_dtype: DType, device: torch.device, seed: int = 0
    ) -> None:
        self.shape, self.length, self.rows = geometry.shape, length, rows
        self._random = torch.Generator(device).manual_seed(seed)
        self._device = device
        made = layouts(ModelState.of([self.shape.state(0)]), 1, Shard())
        views = MemoryViews(Storage(made, {ComponentName.RECURRENT: rows + 1}, device))
        ring = Ring.empty(self.shape, length, rows + 1, record_dtype, device) if length > 1 else None
        self.memory = RecurrentMemory(views.get(0, MATRIX), ring)
        self.memory.matrix.whole[1:].normal_(generator=self._random)
        self.slots, self.rings = (
            1 + torch.randperm(rows, generator=self._random, device=device) for _ in ("slots", "rings")
        )
        self.cursors = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.no_flush = torch.zeros(rows, dtype=torch.bool, device=device)

    def inputs(self) -> RecurrentInputs:
        """Fresh random inputs of one step."""
        shape = self.shape
        heads = (self.rows, shape.groups, shape.heads)
        decays = (*heads, shape.key_dim) if shape.rule.vector_decay else heads
        return RecurrentInputs(
            query=normalize(self._noise(self.rows, shape.groups, shape.key_dim), dim=-1),
            key=normalize(self._noise(self.rows, shape.groups, shape.key_dim), dim=-1),
            value=self._noise(*heads, shape.value_dim),
            log_decay=-0.1 * self._noise(*decays).abs(),
            beta=self._noise(*heads).sigmoid(),
            skip=None if shape.rule.corrected else self._noise(shape.groups, shape.heads),
        )

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random, device=self._device)


def check(
    geometry: Geometry, length: int, record_dtype: DType, device: torch.device, decode: Decode, advance: Advance
) -> tuple[float, float]:
    """The largest relative error of a row's reads against the recurrence in float64 over two cycles, and of all
    matrices the share that a step writes: counted in the last cycle, by what changed.

    Raises Refused where the error is more than rounding.
    """
    bed = Bed(geometry, CHECKED_ROWS, length, record_dtype, device)
    shape = geometry.shape
    # Flushes that are forced at first, one row a step, bring every row to another cursor.
    state = bed.memory.matrix.whole[bed.slots].double().cpu()
    worst, written, counted = 0.0, 0, 0
    steps = CHECKED_ROWS + 2 * length
    for step in range(steps):
        flush = torch.tensor([step == row for row in range(bed.rows)], device=device)
        inputs = bed.inputs()
        before = bed.memory.matrix.whole[bed.slots].clone()
        out = decode(shape.rule, inputs, bed.memory, bed.slots, bed.rings, bed.cursors, flush)
        changed = (bed.memory.matrix.whole[bed.slots] != before).flatten(1).any(1)
        if step >= steps - length:
            written, counted = written + int(changed.sum()), counted + bed.rows
        advance(bed.cursors, bed.slots, flush, length)
        wanted, state = _recurrence(shape.rule, inputs, state)
        found = out.double().cpu()
        errors = (found - wanted).flatten(1).norm(dim=1) / wanted.flatten(1).norm(dim=1)
        worst = max(worst, float("inf") if bool(errors.isnan().any()) else float(errors.max()))
    if worst > TOLERANCE[DType.FLOAT32 if length == 1 else record_dtype]:
        raise Refused(f"a read of length {length} is {worst:.1e} from the recurrence's")
    return worst, written / counted


def _recurrence(rule: Rule, inputs: RecurrentInputs, state: Tensor) -> tuple[Tensor, Tensor]:
    """One token of every row by the reference in float64: state [rows, groups, heads, key dim, value dim]."""
    exact = RecurrentInputs(
        query=inputs.query.double().cpu(),
        key=inputs.key.double().cpu(),
        value=inputs.value.double().cpu(),
        log_decay=inputs.log_decay.double().cpu(),
        beta=inputs.beta.double().cpu(),
        skip=None if inputs.skip is None else inputs.skip.double().cpu(),
    )
    rows = [reference.scan(rule, exact.at(slice(row, row + 1)), state[row]) for row in range(len(state))]
    return torch.cat([out for out, _ in rows]), torch.stack([last for _, last in rows])
