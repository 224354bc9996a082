"""Random lives of random requests: whatever is submitted, cancelled, finished and stepped, nothing leaks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segue.batch.lifecycle import Phase
from segue.batch.step import StepRecord
from segue.errors import ContextTooLong, QueueFull
from segue.ids import Handle
from segue.state.spec import ComponentName
from tests.support.policies import EOS, HOST_MEMORY, REPLAY_LENGTHS, HostMemory, Rig, rig, spec

TRAITS = st.sampled_from(
    [
        frozenset(ComponentName),
        frozenset({ComponentName.FULL}),
        frozenset({ComponentName.FULL, ComponentName.WINDOW}),
        frozenset({ComponentName.FULL, ComponentName.RECURRENT}),
    ]
)


class EngineMachine(RuleBasedStateMachine):
    """Drives an engine; a step may stay in flight while anything else happens."""

    made: Rig
    record: StepRecord | None = None
    handles = 0
    reached: dict[Handle, int]

    @initialize(
        components=TRAITS,
        page=st.sampled_from([1, 3, 4]),
        window=st.sampled_from([1, 3, 9]),
        chunk=st.integers(1, 9),
        budget=st.integers(3, 12),
        pages=st.sampled_from([24, 40]),
        cached=st.booleans(),
        memory=HOST_MEMORY,
        replay_length=REPLAY_LENGTHS,
    )
    def start(
        self,
        components: frozenset[ComponentName],
        page: int,
        window: int,
        chunk: int,
        budget: int,
        pages: int,
        cached: bool,
        memory: HostMemory,
        replay_length: int,
    ) -> None:
        self.reached = {}
        self.made = rig(
            components=components,
            page_tokens=page,
            window=window,
            chunk_tokens=chunk,
            step_tokens=budget,
            max_running=3,
            max_waiting=4,
            pages=pages,
            window_pages=40,
            slots=9 if cached else 3,
            max_len=40,
            cached=cached,
            backups=memory.backups,
            slow=memory.slow,
            rules=memory.rules,
            replay_length=replay_length,
        )

    @rule(
        length=st.integers(1, 40),
        budget=st.sampled_from([1, 2, 5, 12, 25]),
        emitted=st.integers(0, 11),
        priority=st.integers(-1, 1),
        stop=st.integers(0, 15),
        deadline_s=st.none() | st.integers(0, 5),
    )
    def submit(self, length: int, budget: int, emitted: int, priority: int, stop: int, deadline_s: int | None) -> None:
        self.handles += 1
        name = f"q{self.handles}"
        self.made.runner.script[name, stop] = EOS
        asked = spec(
            name,
            length,
            max_tokens=budget,
            emitted=[7] * min(emitted, budget - 1),
            priority=priority,
            deadline_s=deadline_s,
        )
        try:
            self.made.engine.submit(asked, Handle(self.handles))
        except (QueueFull, ContextTooLong):
            assert all(r.request_id != name for r in self.made.engine.live_requests())
        else:
            self.reached[Handle(self.handles)] = len(asked.emitted)

    @rule(seconds=st.integers(1, 3))
    def wait(self, seconds: int) -> None:
        self.made.clock.now += seconds

    @precondition(lambda self: self.record is None)
    @rule()
    def launch(self) -> None:
        self.made.engine.expire()
        self.record = self.made.engine.launch()

    @precondition(lambda self: self.record is not None)
    @rule()
    def commit(self) -> None:
        assert self.record is not None
        news = self.made.engine.commit(self.record)
        self.record = None
        for handle, index in zip(news.handles, news.indices, strict=True):
            assert index == self.reached[handle], "an output goes on where it stood, nothing lost or twice"
            self.reached[handle] += 1
        for ended in [*news.ended, *self.made.engine.take_ended()]:
            assert ended.handle in self.reached, "a request ends once"
            del self.reached[ended.handle]

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        """Nobody else does anything meanwhile: outputs grow over checkpoints and full rings."""
        for _ in range(count):
            if self.record is None:
                self.launch()
            if self.record is not None:
                self.commit()

    @precondition(lambda self: self.record is None)
    @rule()
    def a_prompt_leaves(self) -> None:
        """For somebody of higher priority."""
        extending = [one for one in self.made.engine.live_requests() if one.phase is Phase.EXTENDING]
        if self.made.retraction is not None and extending:
            self.made.take_off(extending[-1])

    @rule()
    def a_copy_finishes(self) -> None:
        if self.made.store is not None:
            self.made.store.tick()

    @rule()
    def host_memory_breaks(self) -> None:
        if self.made.store is not None:
            self.made.store.breaks = not self.made.store.breaks

    @rule(handle=st.integers(1, 12))
    def cancel(self, handle: int) -> None:
        self.made.engine.cancel(Handle(handle), 1)

    @rule(handle=st.integers(1, 12), kept=st.integers(0, 5))
    def finish(self, handle: int, kept: int) -> None:
        self.made.engine.finish(Handle(handle), 1, kept)

    @invariant()
    def pools_are_whole(self) -> None:
        if hasattr(self, "made"):
            self.made.engine.check()
            status = self.made.engine.status()
            assert status.running <= 3
            # Those that were put back into the queue come on top of it.
            assert status.waiting <= 4 + 3
            assert status.retraction.resumed_extend_tokens == 0

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        if self.record is not None:
            self.made.engine.commit(self.record)
        for _ in range(1000):
            if self.made.engine.idle:
                break
            self.made.step()
        assert self.made.engine.idle, "a request starved"
        self.made.require_whole()


TestEngineMachine = EngineMachine.TestCase
TestEngineMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
