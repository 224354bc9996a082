"""A plan becomes a context: tokens, positions and exactly the pages and slots that its rows touch."""

import pytest
import torch

from segue.batch.request import Request
from segue.batch.sampling import SamplingParams
from segue.batch.step import StepPlan, StepRow
from segue.ids import Handle, Page, RequestId, Slot
from segue.runner.assembly import assemble_step
from segue.runner.context import StepContext
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.state.storage import Storage
from segue.state.tables import StateTables
from segue.tokens import EmittedToken, token_array

PAGE_TOKENS, WINDOW = 4, 5
STATE = ModelState.of(
    [
        StateTensor(0, "k", ComponentName.FULL, 1, (8,), DType.FLOAT32),
        StateTensor(1, "k", ComponentName.WINDOW, 1, (8,), DType.FLOAT32, WINDOW),
        StateTensor(2, "matrix", ComponentName.RECURRENT, 1, (1, 8, 8), DType.FLOAT32),
    ]
)
FULL_ONLY = ModelState.of([StateTensor(0, "k", ComponentName.FULL, 1, (8,), DType.FLOAT32)])


def request(prompt: list[int], output: list[int], tables: StateTables) -> Request:
    sampling = SamplingParams(seed=0)
    made = Request(Handle(1), RequestId("one"), 0, token_array(prompt), sampling, tables=tables)
    made.output = [EmittedToken(token, 0.0) for token in output]
    return made


def pages(*numbers: int) -> list[Page]:
    return [Page(number) for number in numbers]


def assemble(state: ModelState, *rows: StepRow) -> StepContext:
    counts = {spec.name: 30 for spec in state.components}
    storage = Storage(layouts(state, PAGE_TOKENS, Shard()), counts, torch.device("cpu"))
    return assemble_step(StepPlan(1, rows), storage, PAGE_TOKENS, state, torch.device("cpu"))


@pytest.fixture
def mixed() -> StepContext:
    old = StateTables(full=pages(5, 6, 7, 8), window=[None, Page(9), Page(10), Page(11)], slot=Slot(3))
    young = StateTables(full=pages(1, 2), window=[Page(3), Page(4)], slot=Slot(2))
    decoded = StepRow(request(list(range(9)), [90, 91], old), 10, 1, True, True)
    extended = StepRow(request([50, 51, 52, 53, 54], [], young), 1, 3, False, False)
    return assemble(STATE, decoded, extended)


def test_tokens_and_positions_are_those_of_the_rows(mixed: StepContext) -> None:
    assert mixed.token_ids.tolist() == [91, 51, 52, 53]
    assert mixed.positions.tolist() == [10, 1, 2, 3]
    assert mixed.row_starts == (0, 1, 4)
    assert mixed.depths == (10, 1)
    assert mixed.decode_rows == 1
    assert mixed.logit_rows.tolist() == [0]


def test_pages_not_yet_reached_and_pages_behind_the_window_are_left_out(mixed: StepContext) -> None:
    assert mixed.full_pages.tolist() == [[5, 6, 7], [1, 0, 0]]
    assert mixed.window_first == (1, 0)
    assert mixed.window_pages.tolist() == [[9, 10], [3, 0]]
    assert mixed.slots.tolist() == [3, 2]


def test_a_model_without_a_component_gets_empty_tables() -> None:
    row = StepRow(request([50, 51], [], StateTables(full=pages(1))), 0, 2, False, True)
    step = assemble(FULL_ONLY, row)
    assert step.window_pages.numel() == 0
    assert step.slots.numel() == 0


def test_a_window_page_freed_too_early_is_our_mistake() -> None:
    tables = StateTables(full=pages(5, 6, 7), window=[None, None, Page(10)], slot=Slot(3))
    row = StepRow(request(list(range(9)), [90, 91], tables), 10, 1, True, True)
    with pytest.raises(AssertionError, match="freed too early"):
        assemble(STATE, row)
