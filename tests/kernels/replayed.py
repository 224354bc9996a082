"""Slots whose matrices are decoded by an implementation under test, each beside the plain recurrence in float64."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from segue.kernels.memory import MemoryViews
from segue.kernels.recurrence import reference
from segue.kernels.recurrence.inputs import RecurrentInputs
from segue.kernels.recurrence.memory import RecurrentMemory, RecurrentShape, Ring
from segue.kernels.recurrence.rule import Rule
from segue.state.layout import Shard, layouts
from segue.state.spec import MATRIX, ComponentName, DType, ModelState
from segue.state.storage import Storage


class Implementation(Protocol):
    """What a module of the package that computes offers."""

    def decode(
        self,
        rule: Rule,
        inputs: RecurrentInputs,
        memory: RecurrentMemory,
        slots: Tensor,
        rings: Tensor,
        cursors: Tensor,
        flush: Tensor,
    ) -> Tensor: ...

    def materialize(
        self, rule: Rule, layers: Sequence[RecurrentMemory], slots: Tensor, rings: Tensor, cursors: Tensor
    ) -> None: ...

    def advance(self, cursors: Tensor, slots: Tensor, flush: Tensor, length: int) -> None: ...


class Trial:
    """A storage of some layers, everything NaN until a slot is allocated, and what each slot's state should be."""

    def __init__(
        self,
        using: Implementation,
        shape: RecurrentShape,
        length: int,
        *,
        slots: int = 12,
        layers: int = 2,
        record_dtype: DType = DType.FLOAT32,
        device: str = "cpu",
    ) -> None:
        self.using, self.shape, self.length, self.device = using, shape, length, device
        state = ModelState.of(shape.state(layer) for layer in range(layers))
        self.storage = Storage(layouts(state, 1, Shard()), {ComponentName.RECURRENT: slots}, torch.device(device))
        self.storage.arena.view(torch.float32).fill_(float("nan"))
        views = MemoryViews(self.storage)
        rings = [None if length == 1 else self._poisoned(slots, record_dtype) for _ in range(layers)]
        self.layers = [RecurrentMemory(views.get(layer, MATRIX), ring) for layer, ring in enumerate(rings)]
        self._ring_rows = list(range(1, slots))
        self.rings: dict[int, int] = {}
        """The ring row of each slot that has one."""
        self.cursors = torch.zeros(slots, dtype=torch.int32, device=device)
        self.exact: dict[int, list[Tensor]] = {}
        """By live slot, the state of each layer."""
        self.steepness = 1.0
        """What log decays are multiplied by."""
        self._random = torch.Generator().manual_seed(slots + length)
        skip = None if shape.rule.corrected else self._noise(shape.groups, shape.heads)
        self._skip = skip if skip is None else skip.to(device)

    def alloc(self, slot: int) -> None:
        """A random state, as a copy or a handoff leaves it: records of whoever had the slot are still there."""
        shape = self.shape
        assert int(self.cursors[slot]) == 0
        self.exact[slot] = []
        for memory in self.layers:
            state = self._noise(shape.groups, shape.heads, shape.key_dim, shape.value_dim)
            memory.matrix.whole[slot] = state.to(self.device)
            self.exact[slot].append(state.double())

    def free(self, slot: int) -> None:
        """As an owner lets go of a slot: the cursor is 0, whatever the ring holds."""
        self.cursors[slot] = 0
        del self.exact[slot]
        self._give_back([slot])

    def inputs(self, rows: int) -> RecurrentInputs:
        """One step's, random."""
        shape = self.shape
        heads = (rows, shape.groups, shape.heads)
        decays = (*heads, shape.key_dim) if shape.rule.vector_decay else heads
        query_key = normalize(self._noise(rows, shape.groups, 2, shape.key_dim), dim=-1).to(self.device)
        # As a layer makes them: parts of wider rows.
        wide = self._noise(rows, shape.groups, shape.heads * shape.value_dim + 3).to(self.device)
        return RecurrentInputs(
            query=query_key[:, :, 0],
            key=query_key[:, :, 1],
            value=wide[..., 3:].unflatten(2, (shape.heads, shape.value_dim)),
            log_decay=-0.3 * self.steepness * self._noise(*decays).abs().to(self.device),
            beta=self._noise(*heads).sigmoid().to(self.device),
            skip=self._skip,
        )

    def decode(self, slots: Sequence[int], flush: Sequence[int] = ()) -> float:
        """One step of all layers, the rows in `flush` forced to write. Returns the largest relative error of a read.

        Slots without an owner are padding: they must read zeros.
        """
        places, rings = torch.tensor(slots, device=self.device), self.ring_rows(slots)
        forced = torch.tensor([row in flush for row in range(len(slots))], device=self.device)
        worst = 0.0
        for layer, memory in enumerate(self.layers):
            inputs = self.inputs(len(slots))
            out = self.using.decode(self.shape.rule, inputs, memory, places, rings, self.cursors, forced)
            worst = max(worst, self._error(layer, slots, inputs, out))
        self.using.advance(self.cursors, places, forced, self.length)
        self._give_back([slot for slot in slots if slot in self.exact and not int(self.cursors[slot])])
        return worst

    def ring_rows(self, slots: Sequence[int]) -> Tensor:
        """Ring rows of some slots, taken for those that have none: the last one given back first."""
        for slot in slots:
            if slot in self.exact and slot not in self.rings:
                self.rings[slot] = self._ring_rows.pop()
        return torch.tensor([self.rings.get(slot, 0) for slot in slots], device=self.device)

    def worst_error(self, slots: Sequence[int], inputs: RecurrentInputs, outs: Sequence[Tensor]) -> float:
        """As `decode`, of a step that was run already, with the same inputs for all layers."""
        return max(self._error(layer, slots, inputs, out) for layer, out in enumerate(outs))

    def _error(self, layer: int, slots: Sequence[int], inputs: RecurrentInputs, out: Tensor) -> float:
        """Moves the exact states of one layer on, and compares."""
        exact, found, worst = in_double(inputs), out.cpu(), 0.0
        for row, slot in enumerate(slots):
            if slot not in self.exact:
                assert not found[row].any()
                continue
            one, states = exact.at(slice(row, row + 1)), self.exact[slot]
            wanted, states[layer] = reference.scan(self.shape.rule, one, states[layer])
            worst = max(worst, relative_error(found[row], wanted[0]))
        return worst

    def materialize(self, slots: Sequence[int]) -> float:
        """Folds the rings of some slots. Returns the largest relative error of a state."""
        places, rings = torch.tensor(slots, device=self.device), self.ring_rows(slots)
        self.using.materialize(self.shape.rule, self.layers, places, rings, self.cursors)
        assert not self.cursors[list(slots)].any()
        self._give_back(slots)
        return max(
            (
                relative_error(memory.matrix.whole[slot].cpu(), self.exact[slot][layer])
                for slot in slots
                for layer, memory in enumerate(self.layers)
                if slot in self.exact
            ),
            default=0.0,
        )

    def copy(self, source: int, target: int) -> None:
        """The slot's bytes to another slot; the source is materialized."""
        assert int(self.cursors[source]) == 0
        self.storage.copy(ComponentName.RECURRENT, source, target)
        self.exact[target] = [state.clone() for state in self.exact[source]]

    def _poisoned(self, rows: int, dtype: DType) -> Ring:
        """A ring full of NaN."""
        ring = Ring.empty(self.shape, self.length, rows, dtype, torch.device(self.device))
        for tensor in (ring.corrections, ring.keys, ring.log_decays):
            tensor.fill_(float("nan"))
        return ring

    def _give_back(self, slots: Sequence[int]) -> None:
        """Ring rows of slots that have no records: whoever gets one next finds what it held."""
        self._ring_rows += [self.rings.pop(slot) for slot in slots if slot in self.rings]

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random)


def in_double(inputs: RecurrentInputs) -> RecurrentInputs:
    """The same numbers in float64, on the CPU."""
    return RecurrentInputs(
        query=inputs.query.double().cpu(),
        key=inputs.key.double().cpu(),
        value=inputs.value.double().cpu(),
        log_decay=inputs.log_decay.double().cpu(),
        beta=inputs.beta.double().cpu(),
        skip=None if inputs.skip is None else inputs.skip.double().cpu(),
    )


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|; infinite where anything is not a number."""
    error = float((found.double() - wanted).norm() / wanted.norm())
    return error if error == error else float("inf")
