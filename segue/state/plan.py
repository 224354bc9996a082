"""The memory plan: how a byte budget becomes pages and slots, and why; printable, no tensors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from segue.cache.shape import CacheShape
from segue.errors import ConfigError
from segue.state.coverage import Coverage
from segue.state.layout import UnitLayout
from segue.state.needs import SLOTS_EACH, page_count, retained_pages_max, window_pages_max
from segue.state.spec import ComponentName, ModelState, uses_ssm_state

COVERAGE = Coverage("the memory plan", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)


@dataclass(frozen=True, slots=True)
class PlanLine:
    """One component's share: units (sink included), bytes of each, and the reason for the count."""

    component: ComponentName
    units: int
    unit_bytes: int
    why: str

    @property
    def bytes(self) -> int:
        return self.units * self.unit_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Unit counts of every component within one byte budget, beside rings that take up `ring_bytes` of it."""

    budget_bytes: int
    lines: tuple[PlanLine, ...]
    ring_bytes: int = 0

    @property
    def counts(self) -> dict[ComponentName, int]:
        return {line.component: line.units for line in self.lines}

    def __str__(self) -> str:
        rows = [f"memory plan: {_mib(self.budget_bytes)} for state"]
        for line in self.lines:
            rows.append(
                f"  {line.component:<10}{line.units:>7} x {line.unit_bytes:>9,} B = {_mib(line.bytes):>11}  {line.why}"
            )
        if self.ring_bytes:
            rows.append(f"  {'rings':<10}{'':>23}{_mib(self.ring_bytes):>11}  what decode steps leave for later writes")
        used = sum(line.bytes for line in self.lines) + self.ring_bytes
        rows.append(f"  {'unused':<10}{'':>23}{_mib(self.budget_bytes - used):>11}")
        return "\n".join(rows)


def plan_memory(
    state: ModelState,
    layouts: Sequence[UnitLayout],
    *,
    budget_bytes: int,
    max_running: int,
    step_tokens: int,
    max_len: int,
    cached: CacheShape | None = None,
    ring_bytes: int = 0,
) -> MemoryPlan:
    """Splits the budget, of which rings take `ring_bytes`.

    Slots and window pages are sized so that `max_running` requests can decode, and one step's chunks be computed
    beside them; then full pages for as many requests of full length. What remains keeps more prefixes cached, or is
    unused where none are. Raises ConfigError when the budget holds not even one full-length request.
    """
    COVERAGE.require(layout.component for layout in layouts)
    by_name = {layout.component: layout for layout in layouts}
    sized = (ComponentName.WINDOW, ComponentName.RECURRENT) if uses_ssm_state(state) else (ComponentName.WINDOW,)
    lines: list[PlanLine] = []
    fixed = ring_bytes
    for name in sized:
        if (layout := by_name.get(name)) is None:
            continue
        if name is ComponentName.RECURRENT:
            units, why = max_running + 1, f"1 working slot for each of {max_running} running, 1 sink"
            if cached is not None:
                units = SLOTS_EACH * max_running + 1
                why = f"1 working, 1 pinned, 1 coming slot for each of {max_running} running, 1 sink"
        else:
            assert state.window is not None
            running = window_pages_max(state.window, 1, layout.tokens)
            below = 0
            if cached is not None and cached.recurrent:
                below = retained_pages_max(state.window, layout.tokens)
            running = min(running + below, (2 if below else 1) * page_count(max_len, layout.tokens))
            chunks = page_count(step_tokens, layout.tokens) + max_running
            units = max_running * running + chunks + 1
            why = (
                f"window {state.window}: {running} pages for each of {max_running} running"
                f"{' (tail, and below its checkpoint)' if below else ''}, {chunks} for chunks, 1 sink"
            )
        line = PlanLine(name, units, layout.unit_bytes, why)
        fixed += line.bytes
        lines.append(line)
    if (full := by_name.get(ComponentName.FULL)) is not None:
        wanted = max_running * page_count(max_len, full.tokens) + 1
        units = min((budget_bytes - fixed) // full.unit_bytes, wanted)
        needed = page_count(max_len, full.tokens) + 1
        if units < needed:
            raise ConfigError(
                f"{_mib(budget_bytes)} of state memory is too little: slots, window pages and rings of "
                f"{max_running} running requests take "
                f"{_mib(fixed)}, one request of {max_len} tokens needs {needed} full pages "
                f"({_mib(needed * full.unit_bytes)}) beside them; "
                "raise engine.state_bytes or lower engine.max_running or engine.max_len"
            )
        tokens = (units - 1) * full.tokens
        why = (
            f"the rest: {tokens:,} tokens"
            if units < wanted
            else f"{max_running} requests of {max_len:,} tokens, the most there can be"
        )
        lines.insert(0, PlanLine(ComponentName.FULL, units, full.unit_bytes, why))
    elif fixed > budget_bytes:
        raise ConfigError(
            f"{_mib(budget_bytes)} of state memory is too little: {max_running} running requests take {_mib(fixed)}"
        )
    if cached is not None:
        spare_bytes = budget_bytes - ring_bytes - sum(line.bytes for line in lines)
        lines = _with_more_cached(lines, by_name, cached, spare_bytes)
    return MemoryPlan(budget_bytes, tuple(lines), ring_bytes)


def _with_more_cached(
    lines: Sequence[PlanLine], layouts: Mapping[ComponentName, UnitLayout], cached: CacheShape, spare_bytes: int
) -> list[PlanLine]:
    """Spends what is spare on prefixes that stay cached beside all that runs: on all that each of them takes."""
    each = [_units_of_one(line.component, layouts[line.component].tokens, cached) for line in lines]
    count = spare_bytes // sum(units * line.unit_bytes for line, units in zip(lines, each, strict=True))
    if not count:
        return list(lines)
    what = f"each of {count:,} more cached {'checkpoints' if cached.recurrent else 'prefixes'}"
    return [
        replace(line, units=line.units + count * units, why=f"{line.why}; {units} for {what}")
        for line, units in zip(lines, each, strict=True)
    ]


def _units_of_one(component: ComponentName, page_tokens: int, cached: CacheShape) -> int:
    """What one more cached prefix takes: a slot, the window that it is resumed with, full pages back to the last one.

    Prefixes that go on where others end are an interval apart, and share what lies before.
    """
    match component:
        case ComponentName.RECURRENT:
            return 1
        case ComponentName.WINDOW:
            return page_count(max(1, cached.window or 0), page_tokens)
        case ComponentName.FULL:
            return cached.interval // page_tokens


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
