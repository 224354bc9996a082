"""Random lives of requests that go off the device and come back, over tiny pools and a tiny host."""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from decode_service.retraction.backup import RetractionBackup
from decode_service.retraction.config import RetractionConfig
from segue.state.spec import ComponentName
from segue.state.tables import StateTables
from tests.decode_service.retraction.devices import TRAITS, Device, model_state

DEPTH_MAX = 22
UNITS = 16


class StoreMachine(RuleBasedStateMachine):
    """Saves and restores in any order; every backup shows its own bytes for as long as it lives."""

    @initialize(
        components=st.sampled_from(TRAITS),
        page_tokens=st.sampled_from([1, 4]),
        window=st.sampled_from([1, 5, 30]),
        host_units=st.integers(0, 20),
        backend=st.sampled_from(["", "cpu_tensor"]),
    )
    def start(
        self, components: tuple[ComponentName, ...], page_tokens: int, window: int, host_units: int, backend: str
    ) -> None:
        state = model_state(components, window=window)
        probe = Device(state, page_tokens, 2, RetractionConfig(host_bytes=0))
        size = max(layout.unit_bytes for layout in probe.storage.layouts.values())
        # An odd budget: holes that no unit fits come about.
        config = RetractionConfig(host_bytes=host_units * size // 2, backend=backend, verify=True)
        self.device = Device(state, page_tokens, UNITS, config)
        self.running: list[tuple[StateTables, int]] = []
        self.saved: list[tuple[RetractionBackup, list[bytes]]] = []

    @rule(depth=st.integers(1, DEPTH_MAX), more_pages=st.integers(0, 2), seed=st.integers(0, 99))
    def run(self, depth: int, more_pages: int, seed: int) -> None:
        self.device.scatter(seed)
        if self.device.has_room(depth, more_pages=more_pages):
            self.running.append((self.device.running(depth, more_pages=more_pages), depth))

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 99))
    def retract(self, number: int) -> None:
        tables, depth = self.running.pop(number % len(self.running))
        before, counts = self.device.bytes_of(self.device.units(tables)), self.device.store.counts()
        backup = self.device.store.save(tables, depth)
        if backup is None:
            assert self.device.store.counts() == counts
            assert self.device.bytes_of(self.device.units(tables)) == before
        else:
            self.saved.append((backup, self.device.bytes_of(self.device.needed(tables, depth))))
        self.device.release(tables)

    @precondition(lambda self: self.saved)
    @rule(number=st.integers(0, 99), stays=st.booleans())
    def resume(self, number: int, stays: bool) -> None:
        """The backup may be kept for longer than the request was away."""
        at = number % len(self.saved)
        backup, saved = self.saved[at]
        if not self.device.has_room(backup.depth):
            return
        tables = self.device.request(backup.depth)
        self.device.store.restore(backup, tables)
        if tables.slot is not None:
            self.device.slots.receive(tables.slot, backup.depth)
        self.device.store.require_whole(backup, tables)
        assert self.device.bytes_of(self.device.needed(tables, backup.depth)) == saved
        self.running.append((tables, backup.depth))
        if not stays:
            self.device.store.free(backup)
            del self.saved[at]

    @precondition(lambda self: self.saved)
    @rule(number=st.integers(0, 99))
    def abort(self, number: int) -> None:
        backup, _ = self.saved.pop(number % len(self.saved))
        self.device.store.free(backup)

    @precondition(lambda self: self.running)
    @rule(number=st.integers(0, 99))
    def end(self, number: int) -> None:
        tables, _ = self.running.pop(number % len(self.running))
        self.device.release(tables)

    @invariant()
    def host_memory_is_whole(self) -> None:
        if not hasattr(self, "device"):
            return
        self.device.store.check()
        assert self.device.host_is_empty == (not self.saved)
        for pool in self.device.pools.values():
            pool.check()


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestStoreMachine = StoreMachine.TestCase
