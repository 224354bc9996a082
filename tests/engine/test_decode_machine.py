"""Random lives of requests whose state comes from elsewhere, beside local ones: what is promised is there."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from segue.batch.lifecycle import Phase
from segue.batch.news import EngineNews
from segue.batch.role import Role
from segue.errors import ContextTooLong, PeerLost, QueueFull
from segue.handoff import UnitRow
from segue.ids import Handle
from segue.state.pool import Owner
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken
from tests.support.policies import EOS, HOST_MEMORY, REPLAY_LENGTHS, HostMemory, Rig, rig, spec
from tests.support.promises import Promise, fence, give_back, reserve, take


class DecodeMachine(RuleBasedStateMachine):
    """Asks, states and settlements of senders come in any order, or not at all until the end."""

    made: Rig

    @initialize(
        components=st.sampled_from([frozenset(ComponentName), frozenset({ComponentName.FULL, ComponentName.WINDOW})]),
        page=st.sampled_from([1, 3, 4]),
        window=st.sampled_from([1, 6]),
        window_pages=st.sampled_from([27, 40]),
        cached=st.booleans(),
        memory=HOST_MEMORY,
        replay_length=REPLAY_LENGTHS,
    )
    def start(
        self,
        components: frozenset[ComponentName],
        page: int,
        window: int,
        window_pages: int,
        cached: bool,
        memory: HostMemory,
        replay_length: int,
    ) -> None:
        self.made = rig(
            components=components,
            role=Role.DECODE,
            page_tokens=page,
            window=window,
            pages=90 if memory.backups is None else 62,
            window_pages=window_pages + 20 * cached,
            slots=9 if cached else 3,
            max_running=3,
            max_waiting=5,
            max_len=40,
            chunk_tokens=5,
            step_tokens=8,
            cached=cached,
            backups=memory.backups,
            slow=memory.slow,
            rules=memory.rules,
            replay_length=replay_length,
        )
        self.promises: dict[Handle, Promise] = {}
        # Prompt checkpoints that are still to follow a state.
        self.followers: dict[Handle, list[UnitRow]] = {}
        self.reached: dict[Handle, int] = {}
        self.count = 0

    @rule(
        length=st.sampled_from([1, 5, 9, 30]),
        budget=st.sampled_from([1, 2, 9, 30]),
        stop=st.integers(0, 60),
        emitted=st.integers(0, 3),
        priority=st.sampled_from([0, 0, 1]),
        local=st.booleans(),
    )
    def submit(self, length: int, budget: int, stop: int, emitted: int, priority: int, local: bool) -> None:
        self.count += 1
        handle = Handle(self.count)
        self.made.runner.script[f"q{handle}", stop] = EOS
        before = [7] * min(emitted, budget - 1)
        asked = spec(f"q{handle}", length, max_tokens=budget, emitted=before, priority=priority)
        try:
            (self.made.engine.submit if local else self.made.engine.expect)(asked, handle)
        except (QueueFull, ContextTooLong):
            return
        self.reached[handle] = len(asked.emitted)

    @rule(handle=st.integers(1, 12))
    def ask(self, handle: int) -> None:
        self.made.engine.ask(Handle(handle), 1)

    @rule()
    def step(self) -> None:
        record = self.made.engine.launch()
        if record is not None:
            self._note(self.made.engine.commit(record))
        self.made.engine.take_recalled()
        for request in self.made.engine.take_promised():
            self.promises[request.handle] = reserve(self.made, request)

    @rule(count=st.integers(2, 12))
    def steps(self, count: int) -> None:
        """Nobody else does anything meanwhile: outputs grow over checkpoints and full rings."""
        for _ in range(count):
            self.step()

    @rule(handle=st.integers(1, 12), stops=st.booleans())
    def state_arrives(self, handle: int, stops: bool) -> None:
        """With it comes the first token, which may be the last: then the state is of no use."""
        promise = self.promises.get(Handle(handle))
        if promise is None or promise.owner is Owner.QUARANTINED:
            return
        token = EmittedToken(EOS if stops else 9, 0.0)
        request = next(one for one in self.made.engine.live_requests() if one.handle == handle)
        self.made.contents.arrive(request, promise.rows, request.known_len)
        news = self.made.engine.receive_last(Handle(handle), 1, token, 0)
        if news is not None:
            fence(self.made, promise)
        else:
            del self.promises[Handle(handle)]
            take(self.made, promise.rows)
            if promise.wanted is not None:
                self.made.contents.arrive(request, promise.checkpoint, promise.wanted)
                self.followers[Handle(handle)] = promise.checkpoint
            news = self.made.engine.receive(Handle(handle), 1, promise.rows, token, 0, promise.wanted)
        self._note(news)

    @rule(handle=st.integers(1, 12), comes=st.booleans())
    def checkpoint_follows(self, handle: int, comes: bool) -> None:
        """Or it does not; its request may have ended meanwhile."""
        rows = self.followers.pop(Handle(handle), None)
        if rows is None:
            return
        if comes:
            take(self.made, rows)
            self.made.engine.receive_checkpoint(Handle(handle), rows)
            return
        give_back(self.made, rows, Owner.RESERVED)
        self.made.engine.give_up_checkpoint(Handle(handle))

    @rule(handle=st.integers(1, 12))
    def sender_fails(self, handle: int) -> None:
        """A request that was taken off the device before goes on here, any other one ends."""
        if not any(one.handle == handle and one.phase is Phase.AWAITING for one in self.made.engine.live_requests()):
            return
        if not self.made.engine.fall_back(Handle(handle), 1):
            self.made.engine.fail(Handle(handle), 1, PeerLost("its sender is gone"))
            (ended,) = self.made.engine.take_ended()
            del self.reached[ended.handle]
        if (promise := self.promises.get(Handle(handle))) is not None and promise.owner is Owner.RESERVED:
            fence(self.made, promise)

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
    def sender_settles(self, handle: int) -> None:
        promise = self.promises.get(Handle(handle))
        if promise is not None and promise.owner is Owner.QUARANTINED:
            del self.promises[Handle(handle)]
            give_back(self.made, promise.all_rows, Owner.QUARANTINED)

    @rule(handle=st.integers(1, 12))
    def client_leaves(self, handle: int) -> None:
        self.made.engine.cancel(Handle(handle), 1)
        self._forget_ended()

    @rule(handle=st.integers(1, 12), kept=st.integers(0, 30))
    def router_has_seen_a_stop(self, handle: int, kept: int) -> None:
        self.made.engine.finish(Handle(handle), 1, kept)
        self._forget_ended()

    @invariant()
    def pools_are_whole(self) -> None:
        if not hasattr(self, "made"):
            return
        self.made.engine.check()
        assert self.made.engine.status().retraction.resumed_extend_tokens == 0
        for name, pool in self.made.pools.items():
            promised = [row for promise in self.promises.values() for row in promise.all_rows]
            following = [row for rows in self.followers.values() for row in rows]
            rows = [row for row in (*promised, *following) if row.component is name]
            counts = pool.counts()
            assert sum(len(row.units) for row in rows) == counts.reserved + counts.quarantined

    def teardown(self) -> None:
        if not hasattr(self, "made"):
            return
        for _ in range(500):
            for number in range(1, self.count + 1):
                self.ask(number)
                self.sender_settles(number)
                self.state_arrives(number, stops=False)
                self.checkpoint_follows(number, comes=number % 2 == 0)
            self.step()
            if self.made.engine.idle and not self.promises and not self.followers:
                break
        assert self.made.engine.idle, "a request starved"
        assert not self.promises
        assert not self.followers
        self.made.require_whole()

    def _forget_ended(self) -> None:
        for ended in self.made.engine.take_ended():
            self.reached.pop(ended.handle)
            if (promise := self.promises.get(ended.handle)) is not None:
                fence(self.made, promise)

    def _note(self, news: EngineNews) -> None:
        for handle, index in zip(news.handles, news.indices, strict=True):
            assert index == self.reached[handle], "an output goes on where it stood, nothing lost or twice"
            self.reached[handle] += 1
        for ended in news.ended:
            del self.reached[ended.handle]


TestDecodeMachine = DecodeMachine.TestCase
TestDecodeMachine.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
