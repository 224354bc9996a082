"""Random lives of requests whose matrices are behind: each slot is what its tokens leave, in float64, at any moment.

Requests are few and decode most of the time; whatever an engine does to a slot is done to theirs. What comes of
promises, refusals and failures is for the machines next door.
"""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segue.batch.lifecycle import Phase
from segue.batch.request import Request
from segue.batch.role import Role
from segue.errors import QueueFull
from segue.handoff import UnitRow
from segue.ids import Handle
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken
from tests.support.policies import Rig, rig, spec
from tests.support.promises import Promise, give_back, reserve, take

LEN_MAX = 60
PICK = st.integers(0, 3)
"""Which of the requests at hand, counted round and round."""
CUT = st.sampled_from([None, 0, 0, 1, 3])
"""How many tokens of its output the router does not keep of a request that it ends; None: its client leaves."""


class ReplayMachine(RuleBasedStateMachine):
    """Every request may be taken off the device, ended or followed by another turn after any step."""

    made: Rig

    @initialize(
        role=st.sampled_from([Role.BOTH, Role.DECODE]),
        components=st.sampled_from(
            [frozenset(ComponentName), frozenset({ComponentName.FULL, ComponentName.RECURRENT})]
        ),
        page=st.sampled_from([1, 4]),
        length=st.sampled_from([3, 8, 8]),
        slots=st.sampled_from([5, 9]),
        backups=st.sampled_from([1, 9]),
        slow=st.booleans(),
    )
    def start(
        self,
        role: Role,
        components: frozenset[ComponentName],
        page: int,
        length: int,
        slots: int,
        backups: int,
        slow: bool,
    ) -> None:
        self.made = rig(
            components=components,
            role=role,
            page_tokens=page,
            pages=400,
            window_pages=400,
            slots=slots,
            max_running=3,
            max_waiting=3,
            max_len=LEN_MAX,
            chunk_tokens=7,
            cached=True,
            backups=backups,
            slow=slow,
            replay_length=length,
        )
        self.count = 0
        self.live: dict[Handle, Request] = {}
        # Prompt checkpoints that are still to follow a state.
        self.followers: dict[Handle, list[UnitRow]] = {}
        # All tokens of those that are gone: another turn continues one of them.
        self.turns: list[Sequence[int]] = [range(3, 12)]

    @rule(
        turn=st.integers(0, 9), cut=st.integers(0, 5), more=st.integers(0, 4), budget=st.sampled_from([3, 14, 30, 40])
    )
    def submit(self, turn: int, cut: int, more: int, budget: int) -> None:
        past = self.turns[turn % len(self.turns)]
        prompt = [*past[: max(1, min(len(past) - cut, LEN_MAX - budget - more))], *range(40, 40 + more)]
        self.count += 1
        asked = spec(f"q{self.count}", prompt, max_tokens=budget, ignore_eos=True)
        engine = self.made.engine
        try:
            (engine.expect if engine.facts.role is Role.DECODE else engine.submit)(asked, Handle(self.count))
        except QueueFull:
            return
        self.live[Handle(self.count)] = engine.live_requests()[-1]

    @rule(count=st.integers(1, 9))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step(lambda: None)

    @precondition(lambda self: self._free())
    @rule(pick=PICK)
    def a_request_leaves_the_device(self, pick: int) -> None:
        free = self._free()
        self.made.take_off(free[pick % len(free)])

    @precondition(lambda self: self._copying())
    @rule()
    def a_copy_finishes(self) -> None:
        assert self.made.store is not None
        self.made.store.tick()

    @precondition(lambda self: self.live)
    @rule(pick=PICK, cut=CUT, in_flight=st.booleans())
    def one_ends(self, pick: int, cut: int | None, in_flight: bool) -> None:
        """With a step in flight, or between two."""
        if in_flight:
            self._step(lambda: self._end(pick, cut))
        else:
            self._end(pick, cut)
            self._forget_ended()

    @precondition(lambda self: self.followers)
    @rule(comes=st.booleans())
    def a_checkpoint_follows(self, comes: bool) -> None:
        handle, rows = self.followers.popitem()
        if comes:
            take(self.made, rows)
            self.made.engine.receive_checkpoint(handle, rows)
        else:
            give_back(self.made, rows, Owner.RESERVED)
            self.made.engine.give_up_checkpoint(handle)

    @invariant()
    def every_slot_is_what_its_tokens_leave(self) -> None:
        if not hasattr(self, "made"):
            return
        self.made.engine.check()
        states, pool = self.made.contents.states, self.made.pools[ComponentName.RECURRENT]
        assert states is not None
        assert {pool.owner(slot) for slot in states.behind} <= {Owner.HELD}, "what is cached is behind"

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        for _ in range(500):
            while self.followers:
                self.a_checkpoint_follows(comes=True)
            self.steps(1)
            if self.made.engine.idle:
                break
        assert self.made.engine.idle, "a request starved"
        self.made.require_whole()

    def _free(self) -> list[Request]:
        """Who decodes, and is not held here by a prompt checkpoint that is still to come."""
        return [one for one in self.live.values() if one.phase is Phase.DECODING and not one.pinned]

    def _copying(self) -> bool:
        return self.made.store is not None and bool(self.made.store.outward or self.made.store.inward)

    def _step(self, meanwhile: Callable[[], None]) -> None:
        """State of whoever is promised room is there at once."""
        engine = self.made.engine
        for handle in self.live:
            engine.ask(handle, 1)
        record = engine.launch()
        promised = engine.take_promised()
        meanwhile()
        if record is not None:
            engine.commit(record)
        self._forget_ended()
        for request in promised:
            if request.handle in self.live:
                self._arrive(request, reserve(self.made, request))
        self._forget_ended()
        engine.take_recalled()

    def _arrive(self, request: Request, promise: Promise) -> None:
        made, handle = self.made, request.handle
        made.contents.arrive(request, promise.rows, request.known_len)
        take(made, promise.rows)
        if promise.wanted is not None:
            made.contents.arrive(request, promise.checkpoint, promise.wanted)
            self.followers[handle] = promise.checkpoint
        made.engine.receive(handle, 1, promise.rows, EmittedToken(9, 0.0), 0, promise.wanted)

    def _end(self, pick: int, cut: int | None) -> None:
        """A client leaves, or the router has seen a stop."""
        request = list(self.live.values())[pick % len(self.live)]
        if cut is None:
            self.made.engine.cancel(request.handle, 1)
        else:
            self.made.engine.finish(request.handle, 1, max(0, len(request.output) - cut))

    def _forget_ended(self) -> None:
        self.made.engine.take_ended()
        here = set(self.made.engine.live_requests())
        for request in [one for one in self.live.values() if one not in here]:
            del self.live[request.handle]
            self.turns.append(request.tokens(0, request.known_len))


TestReplayMachine = ReplayMachine.TestCase
pytestmark = pytest.mark.long
TestReplayMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
