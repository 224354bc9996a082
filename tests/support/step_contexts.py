"""Runs a model step by step without an engine: sequences with pages and slots at random places, in poisoned memory.

Everything that no sequence owns holds NaN, the sinks included, and what a sequence gives up is filled with NaN
again: whatever reads a byte that is not its own shows it in the logits.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from segue.batch.request import Request
from segue.batch.sampling import SamplingParams
from segue.batch.step import StepPlan, StepRow
from segue.ids import SINK, Handle, Page, RequestId, Slot
from segue.runner.assembly import assemble_step
from segue.runner.context import Model
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName
from segue.state.storage import Storage
from segue.state.tables import StateTables
from segue.tokens import token_array


@dataclass(eq=False)
class Run:
    """A sequence under test: all its tokens are known, `computed` of them are in the state."""

    request: Request
    tables: StateTables
    computed: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Part:
    """The next `count` tokens of a sequence in a step; decoded (count 1) or extended."""

    sequence: Run
    count: int
    decode: bool = False


class Bench:
    """A model, its storage and the free units of each component."""

    def __init__(self, model: Model, *, page_tokens: int = 16, units: int = 200, seed: int = 0) -> None:
        self.model, self.page_tokens = model, page_tokens
        self._random = random.Random(seed)
        self.components = [spec.name for spec in model.state.components]
        counts = dict.fromkeys(self.components, units)
        self.storage = Storage(layouts(model.state, page_tokens, Shard()), counts, model.device)
        self.storage.arena.view(torch.float32).fill_(float("nan"))
        self._free = {name: self._random.sample(range(1, units), units - 1) for name in self.components}
        self._steps = 0

    def start(self, tokens: Sequence[int]) -> Run:
        """A new sequence with an empty state."""
        tables = StateTables()
        if ComponentName.RECURRENT in self._free:
            tables.slot = Slot(self._free[ComponentName.RECURRENT].pop())
            self.storage.zero(ComponentName.RECURRENT, tables.slot)
        params = SamplingParams(seed=0, temperature=0.0)
        request = Request(Handle(0), RequestId("r"), 0, token_array(tokens), params, tables=tables)
        return Run(request, tables)

    def run(self, *parts: Part) -> list[torch.Tensor]:
        """Computes one step and returns each part's logits [count, vocab]; decoded parts must come first."""
        rows = []
        for part in parts:
            sequence = part.sequence
            self._reserve(sequence, sequence.computed + part.count)
            rows.append(StepRow(sequence.request, sequence.computed, part.count, part.decode, samples=True))
        self._steps += 1
        step = assemble_step(
            StepPlan(self._steps, tuple(rows)),
            self.storage,
            self.page_tokens,
            self.model.state,
            self.model.device,
        )
        every_token = torch.arange(step.token_ids.shape[0], device=self.model.device)
        logits = self.model.forward(replace(step, logit_rows=every_token))
        results = list(logits.clone().split([part.count for part in parts]))
        for part, result in zip(parts, results, strict=True):
            part.sequence.computed += part.count
            part.sequence.logits.append(result)
            self._free_out_of_window(part.sequence)
        return results

    def extend(self, sequence: Run, *counts: int) -> torch.Tensor:
        """Extends a sequence alone, chunk by chunk; logits of all those tokens."""
        return torch.cat([self.run(Part(sequence, count))[0] for count in counts])

    def decode(self, sequence: Run, steps: int) -> torch.Tensor:
        """Decodes a sequence alone over its known tokens; logits of all those tokens."""
        return torch.cat([self.run(Part(sequence, 1, decode=True))[0] for _ in range(steps)])

    def state_bytes(self, sequence: Run) -> dict[tuple[int, str], torch.Tensor]:
        """The logical state of a sequence by layer and tensor: positions [0, computed) or the live window, and its
        slot.
        """
        found: dict[tuple[int, str], torch.Tensor] = {}
        for spec in self.model.state.components:
            for tensor in spec.tensors:
                view = self.storage.view(tensor.layer, tensor.name)
                if spec.name is ComponentName.RECURRENT:
                    assert sequence.tables.slot is not None
                    found[tensor.layer, tensor.name] = view[sequence.tables.slot].clone()
                    continue
                first = 0 if spec.window is None else max(0, sequence.computed - spec.window)
                pages = sequence.tables.full if spec.window is None else sequence.tables.window
                tokens = [
                    view[pages[position // self.page_tokens], :, position % self.page_tokens]
                    for position in range(first, sequence.computed)
                ]
                found[tensor.layer, tensor.name] = torch.stack(tokens)
        return found

    def zero(self, sequence: Run, layer_tensor: tuple[int, str]) -> None:
        """Loses one state tensor of a sequence."""
        spec = next(
            spec
            for spec in self.model.state.components
            if any((tensor.layer, tensor.name) == layer_tensor for tensor in spec.tensors)
        )
        view = self.storage.view(*layer_tensor)
        units: list[int] = [sequence.tables.slot or SINK]
        if spec.name is not ComponentName.RECURRENT:
            pages = sequence.tables.full if spec.window is None else sequence.tables.window
            units = [page for page in pages if page is not None]
        for unit in units:
            view[unit].zero_()

    def _reserve(self, sequence: Run, tokens: int) -> None:
        count = -(-tokens // self.page_tokens)
        tables = sequence.tables
        while ComponentName.FULL in self._free and len(tables.full) < count:
            tables.full.append(Page(self._free[ComponentName.FULL].pop()))
        while ComponentName.WINDOW in self._free and len(tables.window) < count:
            tables.window.append(Page(self._free[ComponentName.WINDOW].pop()))

    def _free_out_of_window(self, sequence: Run) -> None:
        window = self.model.state.window
        if window is None:
            return
        for index in range(max(0, sequence.computed - window) // self.page_tokens):
            page = sequence.tables.window[index]
            if page is not None:
                sequence.tables.window[index] = None
                self.storage.unit_bytes(ComponentName.WINDOW, page).view(torch.float32).fill_(float("nan"))
                self._free[ComponentName.WINDOW].insert(0, page)
