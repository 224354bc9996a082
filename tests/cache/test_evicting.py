"""What goes when memory is short, and in which order; pinned things never."""

import gc

from segue.cache.eviction import EvictionOrder
from segue.cache.node import Node
from tests.cache.lives import FULL, RECURRENT, WINDOW, worker


def tokens(count: int, last: int | None = None) -> list[int]:
    return list(range(count)) if last is None else [*range(count - 1), last]


def test_a_full_page_leaves_from_a_leaf_with_everything_on_it() -> None:
    made = worker()
    made.finish(made.run(tokens(9), 4, 8))
    assert made.evict(FULL, 1) == 1
    made.check()
    assert made.resumable(tokens(9)) == 4
    assert made.cached(FULL) == 3
    assert made.cached(RECURRENT) == 1
    assert made.cached(WINDOW) == 2


def test_eviction_frees_what_was_asked_or_says_how_much_it_could() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(8)))
    assert made.evict(FULL, 3) == 3
    assert made.evict(FULL, 3) == 1
    assert made.evict(FULL, 3) == 0
    made.check()


def test_what_was_never_hit_goes_first() -> None:
    made = worker(FULL)
    made.finish(made.run([1, 1, 1]))
    made.finish(made.run([1, 1, 1]))
    made.finish(made.run([2, 2, 2]))
    made.evict(FULL, 1)
    assert made.resumable([1, 1, 1]) == 2
    assert made.resumable([2, 2, 2]) == 0


def test_of_those_hit_the_least_recently_used_goes_first() -> None:
    made = worker(FULL)
    for first in (1, 2, 3, 1, 2, 3, 1):
        made.finish(made.run([first] * 3))
    made.evict(FULL, 1)
    assert made.resumable([2] * 3) == 0
    made.evict(FULL, 1)
    assert made.resumable([3] * 3) == 0
    assert made.resumable([1] * 3) == 2


def test_a_match_of_a_leaf_counts_for_what_lies_above_it() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(4)))
    made.finish(made.run([9, 9, 9]))
    made.finish(made.run([*tokens(4), 7]))
    made.evict(FULL, 2)
    assert made.cached(FULL) == 1
    made.finish(made.run([8, 8, 8]))
    made.evict(FULL, 1)
    assert made.resumable(tokens(3)) == 2, "of a leaf that was hit and is gone, page 1 has been hit too"


def test_pinned_pages_never_go() -> None:
    made = worker()
    life = made.run(tokens(9), 8)
    for name in (FULL, WINDOW, RECURRENT):
        assert made.evict(name, 100) == 0
    made.check()
    made.finish(life)
    assert made.evict(FULL, 100) == 4


def test_a_request_that_uses_a_prefix_pins_it_down_to_there_only() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(8)))
    made.start([*tokens(4), 99])
    assert made.evict(FULL, 100) == 2
    made.check()


def test_a_checkpoint_that_was_never_resumed_goes_first_and_then_the_least_recent() -> None:
    made = worker(RECURRENT)
    for first in (1, 2, 3):
        made.finish(made.run([first] * 3, 2))
    for first in (2, 1):
        made.cancel(made.start([first] * 3))
    for gone in (3, 2, 1):
        assert made.resumable([gone] * 3) == 2
        assert made.evict(RECURRENT, 1) == 1
        assert made.resumable([gone] * 3) == 0
        made.check()


def test_a_checkpoint_at_a_fork_goes_after_linear_ones() -> None:
    made = worker(FULL, RECURRENT)
    made.finish(made.run([*tokens(4), 1, 1, 1], 4))
    made.finish(made.run([5] * 5, 4))
    made.cancel(made.start([5] * 5))
    made.finish(made.run([*tokens(4), 2, 2, 2]))
    # The fork was resumed before the other was published; as a linear one it would go first.
    made.cancel(made.start([5] * 5))
    made.evict(RECURRENT, 1)
    assert made.resumable([5] * 5) == 0
    assert made.resumable(tokens(5)) == 4
    made.check()


def test_a_fork_that_lost_a_branch_is_none_any_more() -> None:
    made = worker(FULL, RECURRENT)
    made.finish(made.run([*tokens(4), 1, 1, 1], 4))
    made.finish(made.run([*tokens(4), 2, 2, 2]))
    made.finish(made.run([5] * 5, 4))
    for _ in range(2):
        made.cancel(made.start([5] * 5))
    made.evict(FULL, 1)
    made.check()
    made.evict(RECURRENT, 1)
    assert made.resumable(tokens(5)) == 0
    assert made.resumable([5] * 5) == 4


def test_a_checkpoint_goes_together_with_the_window_pages_that_only_it_needs() -> None:
    made = worker(window=4)
    made.finish(made.run(tokens(9), 6, 8))
    made.cancel(made.start(tokens(7)))
    assert made.cached(WINDOW) == 3, "2 to 6 and 4 to 8"
    assert made.evict(RECURRENT, 1) == 1
    made.check()
    assert made.resumable(tokens(9)) == 6
    assert made.cached(WINDOW) == 2, "what the other needs stays"
    assert made.evict(RECURRENT, 1) == 1
    assert made.cached(WINDOW) == 0
    assert made.cached(FULL) == 4, "full pages stay"
    made.check()


def test_asked_for_window_pages_checkpoints_go_until_enough_are_free() -> None:
    made = worker(window=4)
    made.finish(made.run(tokens(9), 6, 8))
    made.finish(made.run([5] * 5, 4))
    assert made.evict(WINDOW, 1) == 1
    assert made.resumable(tokens(9)) + made.resumable([5] * 5) == 12
    assert made.evict(WINDOW, 100) == 4
    assert made.cached(RECURRENT) == 0
    assert made.tree.forest.evicted_checkpoints == 3
    made.check()


def test_a_checkpoint_whose_window_pages_are_all_in_use_is_not_given_up_for_window_pages() -> None:
    made = worker(window=4)
    life = made.run(tokens(9), 8)
    made.tree.drop_floor(life.lease)
    assert made.evict(WINDOW, 1) == 0, "the tail at 9 still reads them"
    assert made.cached(RECURRENT) == 1
    assert made.evict(RECURRENT, 1) == 1, "its slot can go, though"
    made.check()
    made.cancel(life)
    assert made.cached(WINDOW) == 0
    made.check()


def test_a_checkpoint_without_window_pages_is_not_given_up_for_any() -> None:
    made = worker(window=0)
    made.finish(made.run(tokens(9), 8))
    assert made.cached(WINDOW) == 0
    assert made.evict(WINDOW, 1) == 0
    assert made.resumable(tokens(9)) == 8
    assert made.evict(RECURRENT, 1) == 1, "it was only passed over"
    made.check()


def test_without_recurrent_state_window_pages_go_one_by_one_and_leave_the_full_ones() -> None:
    made = worker(FULL, WINDOW)
    made.finish(made.run(tokens(9)))
    assert made.evict(WINDOW, 3) == 3
    assert made.cached(WINDOW) == 1
    assert made.cached(FULL) == 4
    made.check()


def test_a_window_page_in_use_never_goes() -> None:
    made = worker(FULL, WINDOW, window=3)
    made.finish(made.run(tokens(9)))
    life = made.start(tokens(9))
    made.check()
    assert made.evict(WINDOW, 100) == 2, "of four pages the last two meet [5, 8)"
    made.check()
    made.cancel(life)
    made.check()
    assert made.evict(WINDOW, 100) == 2


def test_of_a_requests_last_window_pages_the_deepest_go_last() -> None:
    made = worker(FULL, WINDOW)
    life = made.start(tokens(9))
    made.compute(life, 9)
    made.finish(life)
    made.evict(WINDOW, 2)
    assert made.resumable(tokens(9)) == 8
    made.check()


def test_an_evicted_slot_is_told_of_before_it_is_free() -> None:
    made = worker(RECURRENT, slots=2)
    made.finish(made.run(tokens(3), 2))
    made.start([8] * 3)
    made.start([9] * 3)
    assert not made.frozen
    made.check()


def test_nodes_that_are_gone_do_not_pile_up_in_orders_whose_turn_never_comes() -> None:
    made = worker(FULL, RECURRENT, units=8, slots=60)
    for first in range(3000):
        made.finish(made.run([first] * 3, 2))
    made.check()
    gc.collect()
    alive = sum(type(thing) is Node for thing in gc.get_objects())
    assert alive < 500


def test_an_order_takes_the_smallest_key_of_now_and_passes_over_what_must_stay() -> None:
    keys: dict[Node, tuple[int, ...] | None] = {Node(None, b"", number): (number,) for number in range(4)}
    order = EvictionOrder(lambda node: keys[node])
    nodes = list(keys)
    for node in nodes:
        order.offer(node)
    keys[nodes[0]], keys[nodes[1]] = (9,), None
    keys[nodes[3]] = (1,)
    order.offer(nodes[3])
    order.check(nodes)
    assert [order.take() for _ in range(4)] == [nodes[3], nodes[2], nodes[0], None]
    keys[nodes[1]] = (5,)
    order.offer(nodes[1])
    order.forget(nodes[1])
    assert order.take() is None
