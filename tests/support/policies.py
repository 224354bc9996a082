"""A whole engine over a scripted runner: real scheduler, admission, holdings and pools, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from segue.batch.admission import HEADROOM_TOKENS, Admission
from segue.batch.failure import NO_TOKEN, SamplingFailed
from segue.batch.holdings import Holdings
from segue.batch.limits import SchedulerLimits
from segue.batch.ratio import NewTokenRatio, RetractionRules
from segue.batch.request import Request
from segue.batch.retraction import Cause, Retraction
from segue.batch.reuse import Reuse
from segue.batch.role import Role
from segue.batch.sampling import SamplingDefaults, SamplingParams
from segue.batch.scheduler import Scheduler
from segue.batch.scores import Scores
from segue.batch.step import StepOutput, StepPlan
from segue.batch.submission import GenerateSpec
from segue.batch.turns import Turns
from segue.cache.shape import CacheShape
from segue.cache.tree import PrefixTree
from segue.engine import Engine
from segue.engine_facts import EngineFacts
from segue.ids import RequestId, RouterId, Slot
from segue.state.needs import page_count
from segue.state.pool import Pool
from segue.state.recurrent import SlotStates
from segue.state.replay_figures import ReplayFigures
from segue.state.spec import ComponentName
from tests.support.contents import Contents, ScriptedStore
from tests.support.delta_model import DeltaStates

EOS = 1


@dataclass
class SlotRecorder:
    """A slot door that holds every slot to its rules: started once, only forward, released once.

    Where the slots have real states, the real door to them is told too, and what each holds is looked at in `check`.
    """

    contents: Contents = field(default_factory=lambda: Contents(1, None, frozenset()))
    depths: dict[Slot, int] = field(default_factory=dict)
    store: ScriptedStore | None = None

    def start(self, slot: Slot) -> None:
        assert slot not in self.depths, f"slot {slot} is started twice"
        self.depths[slot] = 0
        self.contents.slots[slot] = ()
        if self._door is not None:
            self._door.start(slot)

    def resume(self, checkpoint: Slot, slot: Slot) -> None:
        self._use(slot, self.depths[checkpoint])
        self.contents.slots[slot] = self.contents.slots[checkpoint]
        if self._door is not None:
            self._door.resume(checkpoint, slot)

    def receive(self, slot: Slot, depth: int) -> None:
        self._use(slot, depth)
        if self._door is not None:
            self._door.receive(slot, depth)

    def advance(self, slot: Slot, depth: int) -> None:
        assert depth > self.depths[slot]
        self.depths[slot] = depth
        if self._door is not None:
            self._door.advance(slot, depth)

    def check(self) -> None:
        if (states := self.contents.states) is not None:
            states.slots.check()
            awaited = set() if self.store is None else self.store.awaited
            states.require({slot: self.contents.slots[slot] for slot in self.depths if slot not in awaited})

    def figures(self) -> ReplayFigures:
        return ReplayFigures() if self._door is None else self._door.figures()

    def whole(self, slot: Slot) -> None:
        assert slot in self.depths
        if self._door is not None:
            self._door.whole(slot)

    def release(self, slot: Slot) -> None:
        del self.depths[slot]
        if self._door is not None:
            self._door.release(slot)

    @property
    def _door(self) -> SlotStates | None:
        return None if self.contents.states is None else self.contents.states.slots

    def _use(self, slot: Slot, depth: int) -> None:
        assert slot not in self.depths, f"slot {slot} holds a state already"
        self.depths[slot] = depth


@dataclass
class ScriptedRunner:
    """Samples the token that `script` gives for (request id, output index); checks that each row's tables cover it,
    and that what it reads there is its own request's.

    The prompt token at position p scores -p.

    They reach just so far, or at most `pages_ahead` further where pages were set aside.
    """

    page_tokens: int
    window: int | None
    components: frozenset[ComponentName]
    contents: Contents
    script: dict[tuple[str, int], int] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    pages_ahead: int = 0

    def launch(self, plan: StepPlan) -> StepOutput:
        self.plans.append(plan)
        tokens = []
        for row in plan.rows:
            request, tables = row.request, row.request.tables
            assert tables is not None
            assert request.computed == row.start
            last = (row.depth - 1) // self.page_tokens
            reach = range(last + 1, last + 2 + self.pages_ahead)
            if ComponentName.FULL in self.components:
                assert len(tables.full) in reach
            if self.window is not None:
                first = max(0, row.start - self.window) // self.page_tokens
                assert None not in tables.window[first : last + 1], "a window page the step reads or writes is missing"
                assert len(tables.window) in reach
            assert (tables.slot is not None) == (ComponentName.RECURRENT in self.components)
            self.contents.compute(row)
            if row.samples:
                tokens.append(self.script.get((request.request_id, len(request.output)), 7))
        if self.contents.states is not None:
            self.contents.states.compute(plan)
        scores = tuple(
            Scores(row.scored.start + 1, [-float(at + 1) for at in row.scored], [()] * len(row.scored))
            for row in plan.scored_rows
        )
        output = StepOutput(np.asarray(tokens, dtype=np.int64), np.zeros(len(tokens), dtype=np.float32), None, scores)
        if NO_TOKEN in tokens:
            sampling = [row.request for row in plan.rows if row.samples]
            raise SamplingFailed(
                tuple(r for r, token in zip(sampling, tokens, strict=True) if token == NO_TOKEN), output
            )
        return output


@dataclass(frozen=True)
class HostMemory:
    """Room for so many backups (None: nobody is retracted), how fast it is, and when a test forces a retraction."""

    backups: int | None = None
    slow: bool = False
    rules: RetractionRules = field(default_factory=RetractionRules)


def _host_memory(backups: int | None, slow: bool, forced_every: int, headroom: int) -> HostMemory:
    return HostMemory(backups, slow, RetractionRules(headroom_steps=headroom, forced_every=forced_every))


REPLAY_LENGTHS = st.sampled_from([1, 3, 8])
"""Of scripted engines: an answer is often shorter than 8 tokens."""
HOST_MEMORY = st.builds(
    _host_memory,
    backups=st.sampled_from([None, 0, 1, 9, 9]),
    slow=st.booleans(),
    forced_every=st.sampled_from([0, 0, 1, 3]),
    headroom=st.sampled_from([1, 20]),
)


@dataclass
class Clock:
    """Time that moves when a test says so, in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rig:
    """An engine and what is behind its seams."""

    engine: Engine
    runner: ScriptedRunner
    slots: SlotRecorder
    clock: Clock
    pools: dict[ComponentName, Pool]
    tree: PrefixTree | None = None
    store: ScriptedStore | None = None
    retraction: Retraction | None = None

    @property
    def ratio(self) -> NewTokenRatio | None:
        return None if self.retraction is None else self.retraction.ratio

    def take_off(self, request: Request) -> None:
        """Takes a decoding request off the device, whatever the scheduler thinks of it."""
        assert self.retraction is not None
        self.engine._scheduler._retract(self.retraction, request, Cause.TEST)

    @property
    def contents(self) -> Contents:
        return self.runner.contents

    def step(self) -> None:
        """Launches and commits one step, if there is anything to compute; then checks every pool."""
        self.engine.expire()
        if (record := self.engine.launch()) is not None:
            self.engine.commit(record)
        self.engine.check()

    def require_whole(self) -> None:
        """Nothing is held or promised, and what is cached can all be evicted."""
        assert self.engine.idle
        if self.tree is not None:
            assert not self.tree.leases
            for name, pool in self.pools.items():
                self.tree.forest.evict(name, pool.capacity)
            assert not self.tree.forest.roots
        assert all(pool.free + pool.sink == pool.capacity for pool in self.engine.status().pools)
        assert self.slots.depths == {}
        assert self.slots.figures().pending == 0
        assert self.store is None or not self.store.backups


def rig(
    *,
    components: frozenset[ComponentName] = frozenset(ComponentName),
    page_tokens: int = 4,
    window: int = 6,
    pages: int = 64,
    window_pages: int = 64,
    slots: int = 8,
    max_running: int = 4,
    max_waiting: int = 100,
    step_tokens: int = 16,
    chunk_tokens: int = 8,
    max_len: int = 128,
    role: Role = Role.BOTH,
    asks_ahead: int = 2,
    cached: bool = False,
    scored_tokens: int = 16,
    backups: int | None = None,
    slow: bool = False,
    rules: RetractionRules | None = None,
    replay_length: int = 1,
) -> Rig:
    """An engine of the given components; unit counts are without the sink. `cached`: prefixes outlive requests.

    With `backups` requests can be retracted, and host memory has room for so many; `slow` copies take a while.
    With a `replay_length` above 1 the slots, if there are any, have real states and rings.
    """
    width = window if ComponentName.WINDOW in components else None
    sizes = {ComponentName.FULL: pages, ComponentName.WINDOW: window_pages, ComponentName.RECURRENT: slots}
    pools = {name: Pool(name, sizes[name] + 1) for name in ComponentName if name in components}
    contents = Contents(page_tokens, width, components)
    if replay_length > 1 and ComponentName.RECURRENT in components:
        contents.states = DeltaStates(slots + 1, replay_length, max_running + 1)
    recorder, clock = SlotRecorder(contents), Clock()
    shape = CacheShape(
        page_tokens=page_tokens,
        full=ComponentName.FULL in components,
        window=width,
        recurrent=ComponentName.RECURRENT in components,
        grid=2 * page_tokens,
        interval=4 * page_tokens,
    )
    reuse = Reuse(PrefixTree(shape, pools, recorder.release)) if cached else None
    holdings = Holdings(pools, recorder, page_tokens=page_tokens, window=width, reuse=reuse)
    store = retraction = None
    if backups is not None:
        store = recorder.store = ScriptedStore(contents, pools, recorder.depths, backups, slow)
        retraction = Retraction(store, holdings, rules or RetractionRules(), clock)
    admission = Admission(
        {name: pool.usable_count for name, pool in pools.items()},
        page_tokens=page_tokens,
        window=width,
        chunk_tokens=chunk_tokens,
        max_len=max_len,
        role=role,
        cached=shape if cached else None,
        ratio=None if retraction is None else retraction.ratio,
    )
    limits = SchedulerLimits(
        max_running=max_running,
        max_waiting=max_waiting,
        step_tokens=step_tokens,
        chunk_tokens=chunk_tokens,
        page_tokens=page_tokens,
        scored_tokens=scored_tokens,
    )
    facts = EngineFacts(
        name="scripted",
        vocab_size=100,
        max_len=max_len,
        eos_token_ids=(EOS,),
        defaults=SamplingDefaults(),
        page_tokens=page_tokens,
        dtype="float32",
        deterministic=False,
        window=width,
        layouts=(),
        role=role,
    )
    runner = ScriptedRunner(page_tokens, width, components, contents)
    if role is Role.DECODE:
        runner.pages_ahead = page_count(HEADROOM_TOKENS, page_tokens)
    turns = Turns(asks_ahead) if role is Role.PREFILL else None
    scheduler = Scheduler(limits, admission, holdings, turns, retraction)
    tree = None if reuse is None else reuse.tree
    engine = Engine(facts, scheduler, holdings, recorder, runner, clock)
    return Rig(engine, runner, recorder, clock, pools, tree, store, retraction)


def spec(
    name: str,
    prompt: Sequence[int] | int = 5,
    *,
    max_tokens: int = 4,
    attempt: int = 1,
    emitted: Sequence[int] = (),
    priority: int = 0,
    deadline_s: float | None = None,
    ignore_eos: bool = False,
    min_tokens: int = 0,
    stop_token_ids: tuple[int, ...] = (),
) -> GenerateSpec:
    """A greedy request; an int prompt is that many tokens."""
    tokens = tuple(3 + i % 50 for i in range(prompt)) if isinstance(prompt, int) else tuple(prompt)
    sampling = SamplingParams(
        seed=0,
        temperature=0.0,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        stop_token_ids=stop_token_ids,
    )
    return GenerateSpec(
        router_id=RouterId("r"),
        request_id=RequestId(name),
        attempt=attempt,
        prompt=tokens,
        sampling=sampling,
        emitted=tuple(emitted),
        priority=priority,
        deadline_s=deadline_s,
    )
