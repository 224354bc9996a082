"""Random lives of a few slots, decoded, flushed, folded, copied and given to others, against the plain recurrence."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from segue.kernels.recurrence import batched
from segue.kernels.recurrence.memory import RecurrentShape
from segue.kernels.recurrence.rule import Rule
from tests.kernels.replayed import Trial

SLOTS = 5
ERROR_MAX = 1e-5


class ReplayMachine(RuleBasedStateMachine):
    """Slots 1 to 4; a slot that is copied is materialized first, and one that is freed keeps what its ring held."""

    @initialize(using=st.sampled_from(Rule), length=st.sampled_from([1, 2, 3, 5]), heads=st.sampled_from([1, 2]))
    def begin(self, using: Rule, length: int, heads: int) -> None:
        shape = RecurrentShape(rule=using, groups=1, heads=heads, key_dim=4, value_dim=3)
        self.trial = Trial(batched, shape, length, slots=SLOTS, layers=1)
        self.cursors: dict[int, int] = {}

    @precondition(lambda self: len(self.cursors) < SLOTS - 1)
    @rule(data=st.data())
    def alloc(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self._free()))
        self.trial.alloc(slot)
        self.cursors[slot] = 0

    @precondition(lambda self: self.cursors)
    @rule(data=st.data(), steps=st.integers(1, 4))
    def decode(self, data: st.DataObject, steps: int) -> None:
        rows = data.draw(st.lists(st.sampled_from([0, *self.cursors]), min_size=1, max_size=4, unique=True))
        for _ in range(steps):
            self._decode(rows, set())

    @precondition(lambda self: self.cursors)
    @rule(data=st.data())
    def flush(self, data: st.DataObject) -> None:
        rows = data.draw(st.lists(st.sampled_from([0, *self.cursors]), min_size=1, max_size=4, unique=True))
        self._decode(rows, data.draw(st.sets(st.sampled_from(range(len(rows))), min_size=1)))

    @precondition(lambda self: self.cursors)
    @rule(data=st.data())
    def materialize(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from([*self.cursors]), min_size=1, unique=True))
        self._materialize(slots)

    @precondition(lambda self: 0 < len(self.cursors) < SLOTS - 1)
    @rule(data=st.data())
    def copy(self, data: st.DataObject) -> None:
        source = data.draw(st.sampled_from([*self.cursors]))
        target = data.draw(st.sampled_from(self._free()))
        self._materialize([source])
        self.trial.copy(source, target)
        self.cursors[target] = 0

    @precondition(lambda self: self.cursors)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from([*self.cursors]))
        self.trial.free(slot)
        del self.cursors[slot]

    @invariant()
    def cursors_are_those_of_the_steps(self) -> None:
        if hasattr(self, "cursors"):
            assert self.trial.cursors.tolist() == [self.cursors.get(slot, 0) for slot in range(SLOTS)]

    def teardown(self) -> None:
        if getattr(self, "cursors", None):
            self._materialize([*self.cursors])

    def _decode(self, rows: list[int], flush: set[int]) -> None:
        assert self.trial.decode(rows, flush=[*flush]) < ERROR_MAX
        for row, slot in enumerate(rows):
            if slot:
                last = self.cursors[slot] == self.trial.length - 1
                self.cursors[slot] = 0 if last or row in flush else self.cursors[slot] + 1

    def _materialize(self, slots: list[int]) -> None:
        assert self.trial.materialize(slots) < ERROR_MAX
        self.cursors.update(dict.fromkeys(slots, 0))

    def _free(self) -> list[int]:
        return [slot for slot in range(1, SLOTS) if slot not in self.cursors]


TestReplayMachine = ReplayMachine.TestCase
pytestmark = pytest.mark.long
TestReplayMachine.settings = settings(max_examples=80, stateful_step_count=25)
