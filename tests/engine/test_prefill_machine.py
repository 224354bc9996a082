"""Random lives of prompts computed for others: nothing starts without a grant, nothing read is freed, nothing leaks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segue.batch.lifecycle import Phase
from segue.batch.role import Role
from segue.batch.step import StepRecord
from segue.errors import ContextTooLong, QueueFull
from segue.ids import Handle, WorkerId
from segue.state.spec import ComponentName
from tests.support.policies import EOS, Rig, rig, spec


class PrefillMachine(RuleBasedStateMachine):
    """Receivers grant when they like; a step may stay in flight while anything else happens."""

    made: Rig
    record: StepRecord | None = None

    @initialize(
        page=st.sampled_from([1, 3, 4]),
        window=st.sampled_from([1, 6]),
        ahead=st.integers(1, 3),
        cached=st.booleans(),
    )
    def start(self, page: int, window: int, ahead: int, cached: bool) -> None:
        self.made = rig(
            components=frozenset(ComponentName),
            role=Role.PREFILL,
            page_tokens=page,
            window=window,
            asks_ahead=ahead,
            pages=40,
            window_pages=40,
            slots=9 if cached else 3,
            max_running=3,
            max_waiting=6,
            max_len=60,
            chunk_tokens=5,
            step_tokens=8,
            cached=cached,
        )
        self.asked: set[Handle] = set()
        self.granted: set[Handle] = set()
        self.read: set[Handle] = set()
        self.last: set[Handle] = set()
        self.count = 0

    @rule(length=st.integers(1, 30), budget=st.integers(1, 30), stop=st.integers(0, 3), receiver=st.sampled_from("ab"))
    def submit(self, length: int, budget: int, stop: int, receiver: str) -> None:
        self.count += 1
        handle = Handle(self.count)
        self.made.runner.script[f"q{handle}", stop] = EOS
        try:
            self.made.engine.submit_for(WorkerId(receiver), spec(f"q{handle}", length, max_tokens=budget), handle)
        except (QueueFull, ContextTooLong):
            return
        if budget == 1:
            self.last.add(handle)

    @rule()
    def ask(self) -> None:
        due = {request.handle for request in self.made.engine.take_due()}
        assert not due & (self.asked | self.last), "nobody is asked twice, or for nothing"
        self.asked |= due

    @rule(handle=st.integers(1, 12))
    def receiver_grants(self, handle: int) -> None:
        if Handle(handle) in self.asked and self.made.engine.grant(Handle(handle), 1):
            self.granted.add(Handle(handle))

    @precondition(lambda self: self.record is None)
    @rule()
    def launch(self) -> None:
        self.made.engine.expire()
        self.record = self.made.engine.launch()
        for row in self.record.plan.rows if self.record is not None else ():
            assert row.request.handle in self.granted | self.last, "a prompt started that nobody has room for"
            assert not row.decode

    @precondition(lambda self: self.record is not None)
    @rule()
    def commit(self) -> None:
        assert self.record is not None
        self.made.engine.commit(self.record)
        for row in self.record.plan.rows:
            request = row.request
            live = request.phase in (Phase.EXTENDING, Phase.HANDING_OVER)
            if live and request.handle in self.granted - self.read:
                self.made.engine.pin(request.handle, 1)
                self.read.add(request.handle)
        self.record = None

    @rule(handle=st.integers(1, 12))
    def receiver_leaves(self, handle: int) -> None:
        self.made.engine.cancel(Handle(handle), 1)
        self.made.engine.take_ended()

    @rule(handle=st.integers(1, 12))
    def writes_settle(self, handle: int) -> None:
        """As the worker does it: what has not been handed over is cancelled first."""
        if Handle(handle) not in self.read:
            return
        request = next((one for one in self.made.engine.live_requests() if one.handle == handle), None)
        if request is not None and request.phase is not Phase.HANDING_OVER:
            self.receiver_leaves(handle)
        self.read.remove(Handle(handle))
        self.granted.discard(Handle(handle))
        self.made.engine.unpin(Handle(handle))

    @invariant()
    def pools_are_whole(self) -> None:
        if hasattr(self, "made"):
            self.made.engine.check()
            assert self.made.engine.status().running <= 3

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        if self.record is not None:
            self.commit()
        for _ in range(500):
            self.ask()
            for number in range(1, self.count + 1):
                self.receiver_grants(number)
                self.writes_settle(number)
            self.launch()
            if self.record is not None:
                self.commit()
            if self.made.engine.idle:
                break
        assert self.made.engine.idle, "a prompt starved"
        self.made.require_whole()


TestPrefillMachine = PrefillMachine.TestCase
TestPrefillMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
