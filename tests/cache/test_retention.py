"""The newest checkpoint that a running request can be matched at stays resumable, until its floor is dropped."""

import pytest

from segue.state.spec import ComponentName
from tests.cache.lives import FULL, RECURRENT, WINDOW, worker


def tokens(count: int) -> list[int]:
    return list(range(count))


def test_the_floor_lies_a_window_below_the_newest_checkpoint() -> None:
    made = worker(window=3)
    life = made.start(tokens(13))
    assert made.tree.floor(life.lease) is None
    for depth in (4, 8):
        made.compute(life, depth)
        made.checkpoint(life)
        assert made.tree.floor(life.lease) == depth - 3
        made.trim(life)
        made.check()
    made.compute(life, 13)
    made.trim(life)
    made.check()
    assert made.tree.floor(life.lease) == 5


def test_a_hit_brings_the_floor_of_the_checkpoint_it_resumed_at() -> None:
    made = worker(window=3)
    made.finish(made.run(tokens(9), 8))
    life = made.start(tokens(9))
    assert made.tree.floor(life.lease) == 5
    made.check()


@pytest.mark.parametrize("model", [(FULL,), (FULL, WINDOW), (FULL, RECURRENT), (RECURRENT,)])
def test_without_a_window_or_without_recurrent_state_there_is_no_floor(model: tuple[ComponentName, ...]) -> None:
    made = worker(*model)
    made.finish(made.run(tokens(9), *([8] if RECURRENT in made.pools else [])))
    life = made.start(tokens(9))
    assert life.computed == 8
    assert made.tree.floor(life.lease) is None


def test_the_kept_checkpoint_and_its_window_survive_any_eviction_while_the_tail_moves_on() -> None:
    made = worker(window=4)
    life = made.start(tokens(30))
    made.compute(life, 8)
    made.checkpoint(life)
    for depth in (12, 20, 30):
        made.compute(life, depth)
        made.publish(life)
        made.trim(life)
        for name in made.pools:
            made.evict(name, 100)
        made.check()
        assert made.resumable([*tokens(8), 99]) == 8
    assert made.resumable([*tokens(20), 99]) == 8


def test_a_newer_checkpoint_makes_the_older_one_plain_cache() -> None:
    made = worker(window=4)
    life = made.run(tokens(21), 8, 16)
    assert made.resumable(tokens(9)) == 8
    assert made.evict(RECURRENT, 100) == 1
    made.check()
    assert made.resumable(tokens(9)) == 0
    assert made.resumable(tokens(21)) == 16
    made.cancel(life)


def test_a_dropped_floor_makes_the_checkpoint_evictable_until_the_next_one() -> None:
    made = worker(window=4)
    life = made.run(tokens(20), 8)
    assert made.evict(WINDOW, 1) == 0
    made.tree.drop_floor(life.lease)
    assert made.tree.floor(life.lease) is None
    made.check()
    assert made.evict(WINDOW, 1) == 0, "its table still holds them"
    made.trim(life)
    assert made.evict(WINDOW, 1) == 2
    made.check()
    assert made.resumable(tokens(9)) == 0
    made.tree.drop_floor(life.lease)
    life.tokens += [1, 2]
    made.compute(life, 22)
    made.checkpoint(life)
    assert made.tree.floor(life.lease) == 18
    made.check()


def test_two_requests_keep_one_checkpoint_and_it_stays_until_both_are_over() -> None:
    made = worker()
    made.finish(made.run(tokens(9), 8))
    first, second = made.start(tokens(9)), made.start([*tokens(8), 99])
    made.cancel(first)
    made.check()
    assert made.evict(RECURRENT, 100) == 0
    made.cancel(second)
    assert made.evict(RECURRENT, 100) == 1


def test_window_pages_in_the_table_outlive_the_checkpoint_they_came_with() -> None:
    made = worker(window=4)
    made.finish(made.run(tokens(9), 8))
    life = made.start(tokens(20))
    made.tree.drop_floor(life.lease)
    assert made.evict(RECURRENT, 1) == 1
    made.check()
    assert made.cached(WINDOW) == 2
    made.compute(life, 12)
    made.trim(life)
    assert made.cached(WINDOW) == 0
    made.check()
