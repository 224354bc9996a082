"""Random lives of requests over tiny pools: pins are exact, and what is handed out is the state of those tokens."""

import random

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segue.errors import PoolExhausted
from segue.state.spec import ComponentName
from tests.cache.lives import FULL, RECURRENT, WINDOW, Life, Worker, worker

MODELS = (
    (FULL,),
    (FULL, WINDOW),
    (FULL, RECURRENT),
    (WINDOW, RECURRENT),
    (RECURRENT,),
    (WINDOW,),
    tuple(ComponentName),
)
SALTS = ("", "other")
LENGTH_MAX = 24
LIVES_MAX = 4


class Fleet:
    """A worker, and moves that always make sense for it. Requests share prefixes with what was there before."""

    def __init__(self, model: tuple[ComponentName, ...], page: int, window: int, grid: int, units: int) -> None:
        slots, pages = max(3, units // 2), 2 * units // page
        self.worker: Worker = worker(*model, page=page, window=window, grid=grid * page, units=pages, slots=slots)
        self.grid = grid * page
        self.prompts: list[tuple[int, ...]] = [(0, 1, 0, 1, 1)]

    def pick(self, number: int) -> Life:
        return self.worker.lives[number % len(self.worker.lives)]

    def begin(self, number: int, cut: int, tail: tuple[int, ...], salt: str, *, received: bool) -> None:
        """A prompt that leaves an earlier one after `cut` tokens."""
        known = self.prompts[number % len(self.prompts)]
        prompt = (*known[:cut], *tail)[:LENGTH_MAX]
        self.prompts.append(prompt)
        try:
            (self.worker.receive if received else self.worker.start)(prompt, salt)
        except PoolExhausted:
            return

    def step(self, number: int, count: int, spare: int, *, publishes: bool, decodes: bool) -> None:
        """Goes on, to a checkpoint if one is on the way; decoding makes tokens that are known before."""
        life = self.pick(number)
        if decodes and life.computed == len(life.tokens) < LENGTH_MAX:
            life.tokens += [number % 2] * min(count, LENGTH_MAX - life.computed)
            self.prompts.append(tuple(life.tokens))
        if life.computed == len(life.tokens):
            return
        depth = min(life.computed + count, len(life.tokens))
        if (stop := (life.computed // self.grid + 1) * self.grid) < depth:
            depth = stop
        try:
            self.worker.compute(life, depth)
        except PoolExhausted:
            return
        if publishes:
            self.worker.publish(life, spare)
            self.checkpoint(life, spare)
        self.worker.trim(life)

    def checkpoint(self, life: Life, spare: int) -> None:
        if self.worker.shape.recurrent and life.computed and life.computed % self.grid == 0:
            try:
                self.worker.checkpoint(life, spare)
            except PoolExhausted:
                return


class PrefixTreeMachine(RuleBasedStateMachine):
    """One worker; every move is followed by the full check."""

    fleet: Fleet

    @initialize(
        model=st.sampled_from(MODELS),
        page=st.sampled_from([1, 2, 4]),
        window=st.sampled_from([0, 1, 3, 6]),
        grid=st.sampled_from([1, 2]),
        units=st.sampled_from([9, 16, 30]),
    )
    def build(self, model: tuple[ComponentName, ...], page: int, window: int, grid: int, units: int) -> None:
        self.fleet = Fleet(model, page, window, grid, units)

    @precondition(lambda self: len(self.fleet.worker.lives) < LIVES_MAX)
    @rule(
        number=st.integers(0, 20),
        cut=st.sampled_from([0, 2, 4, 7, 8, 12, LENGTH_MAX]),
        tail=st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple),
        salt=st.sampled_from(SALTS),
        received=st.booleans(),
    )
    def begin(self, number: int, cut: int, tail: tuple[int, ...], salt: str, received: bool) -> None:
        self.fleet.begin(number, cut, tail, salt, received=received)

    @precondition(lambda self: self.fleet.worker.lives)
    @rule(
        number=st.integers(0, 7),
        count=st.integers(1, 9),
        spare=st.sampled_from([0, 1, 50]),
        publishes=st.booleans(),
        decodes=st.booleans(),
    )
    def step(self, number: int, count: int, spare: int, publishes: bool, decodes: bool) -> None:
        self.fleet.step(number, count, spare, publishes=publishes, decodes=decodes)

    @precondition(lambda self: self.fleet.worker.lives)
    @rule(number=st.integers(0, 7), spare=st.sampled_from([0, 1, 50]))
    def publish(self, number: int, spare: int) -> None:
        self.fleet.worker.publish(self.fleet.pick(number), spare)

    @precondition(lambda self: self.fleet.worker.lives)
    @rule(number=st.integers(0, 7), spare=st.sampled_from([0, 1, 50]))
    def leave_a_checkpoint(self, number: int, spare: int) -> None:
        self.fleet.checkpoint(self.fleet.pick(number), spare)

    @precondition(lambda self: self.fleet.worker.lives)
    @rule(number=st.integers(0, 7))
    def drop_the_floor(self, number: int) -> None:
        self.fleet.worker.tree.drop_floor(self.fleet.pick(number).lease)

    @precondition(lambda self: self.fleet.worker.lives)
    @rule(number=st.integers(0, 7), publishes=st.booleans())
    def end(self, number: int, publishes: bool) -> None:
        (self.fleet.worker.finish if publishes else self.fleet.worker.cancel)(self.fleet.pick(number))

    @rule(name=st.sampled_from(list(ComponentName)), count=st.integers(1, 6))
    def evict(self, name: ComponentName, count: int) -> None:
        if name in self.fleet.worker.pools:
            self.fleet.worker.evict(name, count)

    @invariant()
    def the_tree_is_whole(self) -> None:
        if hasattr(self, "fleet"):
            self.fleet.worker.check()

    def teardown(self) -> None:
        if hasattr(self, "fleet"):
            leave_nothing(self.fleet.worker)


def leave_nothing(made: Worker) -> None:
    """When all requests have ended and all that can go has gone, nothing is left anywhere."""
    for life in list(made.lives):
        made.cancel(life)
        made.check()
    for name, pool in reversed(made.pools.items()):
        made.evict(name, pool.capacity)
        made.check()
    assert all(pool.free_count == pool.usable_count for pool in made.pools.values())
    assert not made.tree.forest.roots


def live_at_random(operations: int, seed: int, model: tuple[ComponentName, ...]) -> None:
    """Operations on one worker, each followed by the full check."""
    draw = random.Random(seed)
    fleet = Fleet(model, draw.choice([1, 2, 4]), draw.choice([0, 1, 3, 6]), draw.choice([1, 2]), draw.choice([9, 16]))
    made = fleet.worker
    for _ in range(operations):
        chance = draw.random()
        if not made.lives or (chance < 0.2 and len(made.lives) < LIVES_MAX):
            tail = tuple(draw.choices((0, 1), k=draw.randint(1, 9)))
            fleet.begin(
                draw.randrange(99), draw.randrange(LENGTH_MAX), tail, draw.choice(SALTS), received=chance < 0.05
            )
        elif chance < 0.75:
            number, count, spare = draw.randrange(9), draw.randint(1, 9), draw.choice([0, 1, 50])
            fleet.step(number, count, spare, publishes=draw.random() < 0.8, decodes=draw.random() < 0.5)
        elif chance < 0.8:
            made.tree.drop_floor(fleet.pick(draw.randrange(9)).lease)
        elif chance < 0.95:
            (made.finish if draw.random() < 0.7 else made.cancel)(fleet.pick(draw.randrange(9)))
        else:
            made.evict(draw.choice(list(made.pools)), draw.randint(1, 6))
        del fleet.prompts[:-30]
        made.check()
    leave_nothing(made)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: "+".join(model))
def test_a_thousand_random_operations_leave_the_tree_whole(model: tuple[ComponentName, ...]) -> None:
    for seed in range(5):
        live_at_random(200, seed, model)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: "+".join(model))
def test_a_hundred_thousand_random_operations_leave_the_tree_whole(model: tuple[ComponentName, ...]) -> None:
    for seed in range(100, 130):
        live_at_random(500, seed, model)


TestPrefixTreeMachine = PrefixTreeMachine.TestCase
TestPrefixTreeMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
