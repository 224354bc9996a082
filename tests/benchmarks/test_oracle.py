"""The oracle reuses what the placement rule leaves, no more and no less, in the order in which requests come."""

import pytest

from benchmarks.oracle import Arrived, Computed, Event, Over, Placement, Reusable, replay
from benchmarks.workloads import WORKLOADS, Workload
from segue.cache.shape import Strategy

GRID, INTERVAL = 8, 16
EXTRA = Placement(GRID, INTERVAL, Strategy.EXTRA_BUFFER)
DONATED = Placement(1, INTERVAL, Strategy.NO_BUFFER)


def prompt(shared: int, own: int, mark: int) -> list[int]:
    """`shared` tokens that all have, and then `own` ones of this prompt alone."""
    return [*range(shared), *(1_000 * mark + token for token in range(own))]


def whole(request: int, tokens: list[int], *, chunk: int = 1_000) -> list[Event]:
    """A request that comes, and is computed before anything else happens."""
    ends = [*range(chunk, len(tokens), chunk), len(tokens)]
    return [Arrived(request, tokens), *(Computed(request, end, decode=False) for end in ends)]


def test_a_prompt_asked_again_is_resumed_at_its_deepest_grid_point() -> None:
    events = [*whole(1, prompt(30, 0, 1)), *whole(2, prompt(30, 0, 2))]
    assert replay(events, EXTRA) == Reusable(by_rule=24, at_best=29)


def test_one_token_is_left_to_compute() -> None:
    events = [*whole(1, prompt(32, 0, 1)), *whole(2, prompt(32, 0, 2))]
    assert replay(events, EXTRA) == Reusable(by_rule=24, at_best=31)


def test_where_two_prompts_part_the_second_leaves_a_checkpoint_for_the_third() -> None:
    events = [event for request in (1, 2) for event in whole(request, prompt(20, 30, request))]
    assert replay(events, EXTRA) == Reusable(by_rule=0, at_best=20)
    events += whole(3, prompt(20, 30, 3))
    assert replay(events, EXTRA) == Reusable(by_rule=16, at_best=40)


def test_whoever_is_being_computed_leaves_a_checkpoint_for_who_waits() -> None:
    events = [Arrived(1, prompt(20, 30, 1)), Arrived(2, prompt(20, 30, 2))]
    assert replay(events, EXTRA) == Reusable(by_rule=16, at_best=20)


def test_chunks_leave_checkpoints_where_they_end_on_the_grid() -> None:
    second = whole(2, prompt(20, 30, 2))
    assert replay([*whole(1, prompt(20, 30, 1), chunk=16), *second], EXTRA).by_rule == 16
    assert replay([*whole(1, prompt(20, 30, 1), chunk=15), *second], EXTRA).by_rule == 0


def test_decoding_leaves_checkpoints_at_multiples_of_the_interval() -> None:
    answered = prompt(10, 40, 1)
    events = whole(1, answered[:10])
    events += [Computed(1, depth, decode=True) for depth in range(11, 46)]
    events += [Over(1, answered[:45]), *whole(2, answered)]
    assert replay(events, EXTRA) == Reusable(by_rule=32, at_best=45)


def test_a_donated_state_stands_at_the_end_of_prompt_and_request_only() -> None:
    answered = prompt(10, 40, 1)
    events = [*whole(1, answered[:10]), *(Computed(1, depth, decode=True) for depth in range(11, 46))]
    assert replay([*events, *whole(2, answered)], DONATED).by_rule == 10
    events.append(Over(1, answered[:45]))
    assert replay([*events, *whole(2, answered)], DONATED).by_rule == 45
    assert replay([*events, *whole(2, [*answered[:30], 7])], DONATED) == Reusable(by_rule=10, at_best=30)


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_prompts_of_a_group_begin_alike_and_no_longer(workload: Workload) -> None:
    conversations = workload.conversations(0.1, range(50_000))
    groups = {parts[0][: workload.shared] for parts in conversations}
    assert len(groups) == workload.groups
    assert len({parts[0] for parts in conversations}) == len(conversations)
    assert {len(parts) for parts in conversations} == {workload.turns}
    assert workload.conversations(0.1, range(50_000)) == conversations
