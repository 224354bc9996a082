"""The directory knows exactly those who spoke lately, and says when it may not know everybody."""

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from deploy.directory import Directory, Entry, Part

LEASE_S = 3.0
NAMES = st.sampled_from(["a", "b", "c"])


def entry(name: str, part: Part = Part.BOTH) -> Entry:
    return Entry(member_id=name, part=part, address=f"{name}:1", pid=1, node="n", fingerprint="f")


class DirectoryMachine(RuleBasedStateMachine):
    """Against a model that keeps every beat and asks at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.directory = Directory(LEASE_S, lambda: self.now)
        self.heard: dict[str, float] = {}

    @rule(name=NAMES)
    def beat(self, name: str) -> None:
        self.directory.beat(entry(name))
        self.heard[name] = self.now

    @rule(name=NAMES)
    def leave(self, name: str) -> None:
        self.directory.leave(name)
        self.heard.pop(name, None)

    @rule(passed_s=st.floats(0.0, 2 * LEASE_S))
    def wait(self, passed_s: float) -> None:
        self.now += passed_s

    @invariant()
    def it_lists_those_whose_lease_runs(self) -> None:
        members = self.directory.members()
        alive = {name for name, at in self.heard.items() if at + LEASE_S > self.now}
        assert {one.member_id for one in members.entries} == alive
        assert len(members.entries) == len(alive)
        assert members.complete == (self.now - 100.0 >= LEASE_S)


TestDirectory = DirectoryMachine.TestCase


def test_a_new_directory_does_not_claim_to_know_everybody() -> None:
    now = 5.0
    directory = Directory(LEASE_S, lambda: now)
    directory.beat(entry("a"))
    assert not directory.members().complete
    now += LEASE_S
    directory.beat(entry("a"))
    assert directory.members().complete


def test_a_process_that_says_something_new_is_listed_once_and_with_that() -> None:
    directory = Directory(LEASE_S, lambda: 0.0)
    directory.beat(entry("a"))
    moved = replace(entry("a"), address="elsewhere:1")
    directory.beat(moved)
    assert directory.members().entries == (moved,)


def test_members_are_found_by_what_they_are() -> None:
    directory = Directory(LEASE_S, lambda: 0.0)
    old, new, companion = entry("old", Part.DECODE), entry("new", Part.DECODE), entry("prefill", Part.PREFILL)
    for one in (old, companion, new, entry("router", Part.ROUTER)):
        directory.beat(one)
    members = directory.members()
    assert members.of(Part.DECODE) == (old, new)
    assert members.of(Part.DECODE, Part.PREFILL) == (old, companion, new)
