"""From a step plan to the step context: the requests' tokens and page tables as a few tensors."""

from collections.abc import Sequence

import numpy as np
import torch

from segue.batch.step import IntArray, StepPlan, StepRow
from segue.ids import SINK
from segue.runner.context import StepContext
from segue.state.spec import ComponentName, ModelState, uses_ssm_state
from segue.state.storage import Storage
from segue.state.tables import StateTables


def assemble_step(
    plan: StepPlan,
    storage: Storage,
    page_tokens: int,
    state: ModelState,
    device: torch.device,
) -> StepContext:
    """Every row's request owns the pages and the slot that the row needs; of the tables only what the row touches is
    taken.

    The logits wanted are those of the sampling rows, in row order, and behind them those of the scored positions.
    """
    rows = plan.rows
    window = state.window
    tables = [_tables(row) for row in rows]
    starts = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([row.count for row in rows], out=starts[1:])
    tokens: list[int] = []
    for row in rows:
        if row.count == 1:
            tokens.append(row.request.token_at(row.start))
        else:
            tokens += row.request.tokens(row.start, row.start + row.count)
    depths = np.array([row.start for row in rows], dtype=np.int64)
    positions = np.arange(len(tokens), dtype=np.int64)
    positions += np.repeat(depths - starts[:-1], np.diff(starts))
    stops = [(row.depth - 1) // page_tokens + 1 for row in rows]
    full: list[Sequence[int]] = []
    if state.component(ComponentName.FULL) is not None:
        full = [table.full[:stop] for table, stop in zip(tables, stops, strict=True)]
    first, live = [0] * len(rows), []
    if window is not None:
        first = [max(0, row.start - window) // page_tokens for row in rows]
        live = [_live(table, *span) for table, span in zip(tables, zip(first, stops, strict=True), strict=True)]
    slots = np.array([_slot(table) for table in tables] if uses_ssm_state(state) else [], dtype=np.int64)
    samples = starts[1:][[row.samples for row in rows]] - 1
    scored = [
        np.arange(row.scored.start, row.scored.stop, dtype=np.int64) - row.start + start
        for row, start in zip(rows, starts[:-1], strict=True)
        if row.scored
    ]

    def tensor(values: IntArray) -> torch.Tensor:
        return torch.from_numpy(values).to(device)

    return StepContext(
        storage=storage,
        page_tokens=page_tokens,
        token_ids=tensor(np.array(tokens, dtype=np.int64)),
        positions=tensor(positions),
        row_starts=tuple(starts.tolist()),
        depths=tuple(depths.tolist()),
        decode_rows=sum(row.decode for row in rows),
        full_pages=tensor(_padded(full, len(rows))),
        window_pages=tensor(_padded(live, len(rows))),
        window_first=tuple(first),
        slots=tensor(slots),
        logit_rows=tensor(np.concatenate([samples, *scored])),
    )


def _tables(row: StepRow) -> StateTables:
    tables = row.request.tables
    assert tables is not None, f"request {row.request.request_id} runs without tables"
    return tables


def _slot(tables: StateTables) -> int:
    assert tables.slot is not None, "a request of a recurrent model runs without a slot"
    return tables.slot


def _live(tables: StateTables, first: int, stop: int) -> list[int]:
    """Window pages [first, stop), all of which the row reads or writes."""
    pages: list[int] = []
    for page in tables.window[first:stop]:
        assert page is not None, f"a window page among [{first}, {stop}) was freed too early"
        pages.append(page)
    return pages


def _padded(tables: Sequence[Sequence[int]], rows: int) -> IntArray:
    """[rows, pages], short rows filled with the sink."""
    out: IntArray = np.full((rows, max(map(len, tables), default=0)), SINK, dtype=np.int64)
    for line, table in zip(out, tables, strict=False):
        line[: len(table)] = table
    return out
