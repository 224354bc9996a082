"""Publishing moves pages from a request to the tree; duplicates stay the request's, and holes are healed."""

import pytest

from segue.cache.check import check_tree
from segue.errors import PoolExhausted
from segue.ids import Slot
from segue.state.pool import Owner
from tests.cache.lives import FULL, RECURRENT, WINDOW, worker


def tokens(count: int) -> list[int]:
    return list(range(count))


def test_published_pages_change_owner_and_stay_in_the_requests_table() -> None:
    made = worker(FULL)
    life = made.start(tokens(7))
    made.compute(life, 7)
    before = list(life.tables.full)
    assert made.publish(life)
    assert life.tables.full == before
    assert [made.pools[FULL].owner(page) for page in before] == [Owner.CACHED] * 3 + [Owner.HELD]
    assert made.evict(FULL, 3) == 0
    made.check()


def test_what_is_whole_is_published_chunk_by_chunk() -> None:
    made = worker(FULL)
    life = made.start(tokens(9))
    for depth, cached in ((3, 1), (4, 2), (9, 4)):
        made.compute(life, depth)
        assert made.publish(life)
        assert made.cached(FULL) == cached
        made.check()


def test_a_prompt_of_less_than_a_page_publishes_nothing() -> None:
    made = worker(FULL, page=4)
    life = made.run(tokens(3))
    assert made.cached(FULL) == 0
    made.cancel(life)
    assert not made.tree.forest.roots


def test_a_cancelled_request_publishes_nothing_new() -> None:
    made = worker()
    life = made.start(tokens(9))
    made.compute(life, 8)
    made.cancel(life)
    assert made.cached(FULL) == 0
    assert all(pool.free_count == pool.usable_count for pool in made.pools.values())
    made.check()


def test_duplicates_stay_the_requests_and_are_counted_as_foreign() -> None:
    made = worker(FULL)
    first, second = made.start(tokens(8)), made.start([*tokens(6), 99, 98])
    for life in (first, second):
        made.compute(life, 8)
        assert made.publish(life)
    assert second.lease.foreign == 3
    assert first.lease.foreign == 0
    assert [made.pools[FULL].owner(page) for page in second.tables.full] == [Owner.HELD] * 3 + [Owner.CACHED]
    made.check()
    made.finish(first)
    made.check()
    assert made.evict(FULL, 9) == 1, "the second request keeps what lies above its own page"
    made.finish(second)
    made.check()
    assert made.cached(FULL) == 4


def test_a_request_whose_pages_are_all_there_uses_none_of_them() -> None:
    made = worker(FULL)
    first, second = made.start(tokens(8)), made.start(tokens(8))
    for life in (first, second):
        made.compute(life, 8)
    assert made.publish(first)
    assert not made.publish(second)
    assert second.lease.foreign == 0
    made.finish(first)
    assert made.evict(FULL, 9) == 4
    made.check()


def test_no_more_pages_of_others_are_pinned_than_there_is_room_to_spare() -> None:
    made = worker(FULL)
    first, second = made.start(tokens(8)), made.start([*tokens(6), 99, 98])
    for life in (first, second):
        made.compute(life, 8)
    made.publish(first)
    assert not made.publish(second, spare=2)
    assert second.lease.foreign == 0
    assert made.cached(FULL) == 4
    made.check()
    assert made.publish(second, spare=3)
    assert second.lease.foreign == 3
    made.check()


def test_a_checkpoint_that_would_pin_too_much_is_skipped_and_its_slot_stays_the_requests() -> None:
    made = worker(FULL, RECURRENT)
    first, second = made.start(tokens(8)), made.start(tokens(8))
    for life in (first, second):
        made.compute(life, 8)
    made.publish(first)
    assert not made.checkpoint(second, spare=3)
    assert made.tree.counts.skipped == 1
    assert made.checkpoint(second, spare=4)
    assert made.tree.counts.taken == 1
    made.check()


def test_a_second_checkpoint_of_the_same_tokens_stays_the_requests() -> None:
    made = worker()
    first, second = made.start(tokens(8)), made.start(tokens(8))
    for life in (first, second):
        made.compute(life, 8)
    assert made.checkpoint(first)
    assert not made.checkpoint(second)
    assert made.tree.counts.duplicates == 1
    assert second.lease.kept is first.lease.kept, "it can be matched there all the same"
    made.check()


def test_only_a_slot_that_the_request_holds_can_become_a_checkpoint() -> None:
    made = worker(RECURRENT)
    life = made.start(tokens(8))
    made.compute(life, 8)
    with pytest.raises(AssertionError, match="not held"):
        made.tree.publish_checkpoint(life.lease, made.keys(tokens(8)), life.tables, 4, Slot(17), 0)


def test_with_recurrent_state_window_pages_are_published_with_checkpoints_only() -> None:
    made = worker(window=3)
    life = made.start(tokens(12))
    made.compute(life, 8)
    made.publish(life)
    assert made.cached(WINDOW) == 0
    made.checkpoint(life)
    assert made.cached(WINDOW) == 2, "those that meet [5, 8)"
    made.check()


def test_a_window_page_of_the_tree_goes_with_the_last_who_needs_it() -> None:
    made = worker(window=4)
    life = made.run(tokens(12), 8)
    made.check()
    assert made.cached(WINDOW) == 2
    made.tree.drop_floor(life.lease)
    assert made.evict(RECURRENT, 100) == 1
    assert made.cached(WINDOW) == 2, "they are in the request's table, for the floor that was"
    made.trim(life)
    assert made.cached(WINDOW) == 0, "the tail at 12 reads nothing below 8"
    made.check()


def test_a_missing_window_page_is_healed_from_a_live_duplicate() -> None:
    made = worker(FULL, WINDOW)
    made.finish(made.run(tokens(9)))
    made.evict(WINDOW, 100)
    assert made.resumable(tokens(9)) == 0
    assert made.match(tokens(9)).limited_by is WINDOW
    life = made.run(tokens(9))
    made.check()
    assert made.resumable(tokens(9)) == 8
    made.finish(life)
    made.check()
    assert made.resumable(tokens(9)) == 8
    assert made.evict(WINDOW, 100) == 4, "a healed page can go again"
    made.check()


def test_an_evicted_checkpoint_is_healed_by_the_next_request() -> None:
    made = worker()
    made.finish(made.run(tokens(9), 8))
    made.evict(RECURRENT, 100)
    assert made.match(tokens(9)).limited_by is RECURRENT
    made.finish(made.run(tokens(9), 8))
    made.check()
    assert made.resumable(tokens(9)) == 8
    assert made.tree.counts.taken == 2


def test_a_checkpoint_that_comes_after_a_deeper_one_can_be_evicted() -> None:
    made = worker(RECURRENT)
    life = made.run(tokens(9), 8)
    slot = Slot(made.take(RECURRENT, 1)[0])
    made.stamps[RECURRENT, slot] = ("", tuple(tokens(4)))
    made.frozen.add(slot)
    assert made.tree.publish_checkpoint(life.lease, made.keys(tokens(4)), life.tables, 2, slot, 0)
    assert life.lease.kept is not None
    assert life.lease.kept.pages == 4
    made.check()
    assert made.evict(RECURRENT, 100) == 1
    made.check()


def test_a_refused_start_leaves_no_lease_and_no_root() -> None:
    made = worker(RECURRENT, slots=1)
    life = made.start(tokens(5))
    with pytest.raises(PoolExhausted):
        made.start(tokens(5), "other")
    assert made.tree.leases == {life.lease}
    assert list(made.tree.forest.roots) == [""]
    made.check()


def test_a_lease_ends_once() -> None:
    made = worker(FULL)
    life = made.start(tokens(3))
    made.cancel(life)
    with pytest.raises(AssertionError, match="ends once"):
        made.tree.release(life.lease)


def test_check_sees_a_pin_without_a_holder() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(4)))
    made.match(tokens(5)).path[-1].path_pins += 1
    with pytest.raises(AssertionError, match="path pins of page 2"):
        check_tree(made.tree, made.pools)


def test_a_window_page_that_came_without_its_beginning_serves_nobody_else() -> None:
    made = worker(FULL, WINDOW, window=3)
    life = made.start(tokens(12))
    made.compute(life, 8)
    # The state after 8 tokens came here with the keys of [5, 8).
    life.tables.window_from = 5
    made.publish(life)
    assert [node.window is None for node in life.lease.anchor.up(4)[::-1]] == [True, True, True, False]
    made.check()


def test_a_checkpoint_without_all_of_its_window_pages_is_skipped() -> None:
    made = worker(window=3)
    life = made.start(tokens(13))
    made.compute(life, 8)
    life.tables.window_from = 5
    assert not made.checkpoint(life)
    assert made.tree.counts.skipped == 1
    assert made.cached(WINDOW) == 0
    made.compute(life, 12)
    assert made.checkpoint(life)
    made.check()
