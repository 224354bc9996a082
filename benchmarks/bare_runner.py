"""The model runner without scheduler, wire or HTTP: a fixed batch from prompts to a fixed number of tokens."""

from collections.abc import Sequence

import torch

from segue.batch.request import Request
from segue.batch.sampling import SamplingParams
from segue.batch.step import StepPlan, StepRow
from segue.ids import Handle, Page, RequestId, Slot
from segue.runner.context import Model
from segue.runner.runner import Runner
from segue.runner.sampler import Sampler
from segue.state.layout import Shard, layouts
from segue.state.needs import page_count
from segue.state.spec import uses_ssm_state
from segue.state.storage import Storage
from segue.state.tables import StateTables
from segue.tokens import EmittedToken, token_array

PAGE_TOKENS = 64
STEP_TOKENS = 1024


class BareRunner:
    """Serves one batch at a time, each request on pages and a slot of its own that are never given back."""

    def __init__(self, model: Model, *, batch: int, length: int) -> None:
        """`length`: prompt and output tokens of each request."""
        unit_layouts = layouts(model.state, PAGE_TOKENS, Shard())
        pages = page_count(length, PAGE_TOKENS)
        counts = {
            layout.component: 1 + batch * (pages if spec.paged else 1)
            for layout, spec in zip(unit_layouts, model.state.components, strict=True)
        }
        self._storage = Storage(unit_layouts, counts, torch.device("cpu"))
        self._runner = Runner(model, self._storage, PAGE_TOKENS, Sampler((), model.vocab_size))
        self._tables = [
            StateTables(
                full=[Page(1 + row * pages + index) for index in range(pages)],
                window=[Page(1 + row * pages + index) for index in range(pages)] if model.state.window else [],
                slot=Slot(1 + row) if uses_ssm_state(model.state) else None,
            )
            for row in range(batch)
        ]
        self._steps = 0

    def generate(self, prompts: Sequence[Sequence[int]], output: int) -> list[list[int]]:
        """Greedy outputs of `output` tokens each: the prompts in steps of 1,024 tokens, then all rows at once."""
        requests = self.prefill(prompts, output)
        self.decode(requests, output - 1)
        return [[token.token_id for token in request.output] for request in requests]

    def prefill(self, prompts: Sequence[Sequence[int]], output: int) -> list[Request]:
        """Starts a batch anew: requests with their first token, `output` being the most they may have."""
        self._storage.arena.zero_()
        requests = [_request(index, prompt, output) for index, prompt in enumerate(prompts)]
        for request, tables in zip(requests, self._tables, strict=True):
            request.tables = tables
        for group in _groups(requests):
            self._launch([StepRow(request, 0, request.prompt_len, False, True) for request in group])
        return requests

    def decode(self, requests: Sequence[Request], steps: int) -> None:
        """All requests go on by `steps` tokens, together."""
        for _ in range(steps):
            self._launch([StepRow(request, request.known_len - 1, 1, True, True) for request in requests])

    def _launch(self, rows: Sequence[StepRow]) -> None:
        self._steps += 1
        result = self._runner.launch(StepPlan(self._steps, tuple(rows)))
        for row, token_id in zip(rows, result.token_ids.tolist(), strict=True):
            row.request.computed = row.depth
            row.request.output.append(EmittedToken(token_id, 0.0))


def _request(index: int, prompt: Sequence[int], output: int) -> Request:
    sampling = SamplingParams(seed=0, temperature=0.0, max_tokens=output, ignore_eos=True)
    return Request(Handle(index), RequestId(f"bare-{index}"), 0, token_array(prompt), sampling)


def _groups(requests: Sequence[Request]) -> list[list[Request]]:
    """Requests in order, as many to a group as fit one step's tokens."""
    groups: list[list[Request]] = [[]]
    for request in requests:
        if groups[-1] and sum(one.prompt_len for one in groups[-1]) + request.prompt_len > STEP_TOKENS:
            groups.append([])
        groups[-1].append(request)
    return groups
