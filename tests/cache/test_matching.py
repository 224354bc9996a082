"""What a prompt can be resumed at: the joint maximum over the components, and at least one token left to compute."""

import pytest

from segue.cache.match import Match
from tests.cache.lives import FULL, RECURRENT, WINDOW, worker


def tokens(count: int) -> list[int]:
    return list(range(count))


def test_an_empty_tree_matches_nothing_and_makes_no_root() -> None:
    made = worker()
    assert made.match(tokens(9)) == Match("", (), 0, FULL)
    assert not made.tree.forest.roots


@pytest.mark.parametrize("page", [1, 2, 4])
def test_a_prompt_of_one_token_is_computed_whole(page: int) -> None:
    made = worker(page=page, grid=page)
    for _ in range(2):
        life = made.run([7])
        made.check()
        made.finish(life)
    made.check()
    assert made.resumable([7]) == 0
    assert made.match([7]).limited_by is None


def test_of_a_model_with_full_attention_only_each_page_can_be_continued_after() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(7)))
    assert made.resumable([*tokens(6), 99]) == 6
    assert made.resumable([*tokens(5), 99]) == 4
    assert made.resumable([99, *tokens(5)]) == 0


def test_a_match_never_covers_the_last_token() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(8)))
    match = made.match(tokens(8))
    assert len(match.path) == 4, "a receiver needs none of these pages"
    assert match.resumable_pages == 3


def test_keys_beyond_the_known_tokens_are_not_matched() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(8)))
    assert len(made.tree.match("", made.keys(tokens(8)), 5).path) == 2


def test_recurrent_state_is_resumed_at_exactly_the_depth_of_a_checkpoint() -> None:
    made = worker()
    made.finish(made.run(tokens(11), 4))
    made.check()
    match = made.match(tokens(11))
    assert len(match.path) == 5
    assert match.resumable_pages == 2
    assert match.limited_by is RECURRENT
    assert made.start(tokens(11)).computed == 4
    made.check()


def test_a_checkpoint_at_the_prompts_end_serves_longer_prompts_only() -> None:
    made = worker()
    made.finish(made.run(tokens(8), 4, 8))
    assert made.resumable(tokens(8)) == 4
    assert made.resumable(tokens(9)) == 8


def test_the_deepest_grid_point_is_all_that_recurrent_state_can_give() -> None:
    made = worker(grid=4)
    made.finish(made.run(tokens(8), 4))
    assert made.match(tokens(8)).limited_by is None


@pytest.mark.parametrize("window", [0, 1, 3])
def test_a_window_of_less_than_a_page_reaches_into_one_page_at_most(window: int) -> None:
    made = worker(FULL, WINDOW, page=4, window=window)
    made.finish(made.run(tokens(10)))
    made.check()
    assert made.resumable(tokens(10)) == 8
    assert made.resumable([*tokens(7), 99]) == 4
    life = made.start(tokens(10))
    made.check()
    assert life.tables.window == ([None, None] if window == 0 else [None, life.tables.window[1]])


def test_the_last_leaf_may_have_no_window_page_where_a_page_is_longer_than_the_window() -> None:
    made = worker(FULL, WINDOW, page=8, window=3)
    made.finish(made.run(tokens(20)))
    assert made.evict(WINDOW, 100) == 2
    made.check()
    assert made.match(tokens(20)).limited_by is WINDOW
    healed = made.run(tokens(20))
    made.check()
    made.finish(healed)
    assert made.resumable(tokens(20)) == 16


def test_a_hole_in_the_window_is_fatal_only_within_its_reach() -> None:
    made = worker(FULL, WINDOW, page=2, window=4)
    made.finish(made.run(tokens(13)))
    path = made.match(tokens(13)).path
    for node in path[:2]:
        assert node.window is not None
    life = made.start([*tokens(11), 99])
    assert life.computed == 10
    # In use are the pages of positions 6 to 10; never resumed at are the others.
    made.evict(WINDOW, 4)
    assert [node.window is not None for node in path] == [False, False, False, True, True, False]
    assert made.resumable(tokens(13)) == 10
    assert made.resumable([*tokens(9), 99]) == 0, "positions 4 and 5 are gone"
    made.check()


def test_near_the_prompts_start_a_window_is_as_long_as_what_lies_before() -> None:
    made = worker(FULL, WINDOW, page=2, window=100)
    made.finish(made.run(tokens(7)))
    assert made.resumable(tokens(7)) == 6


def test_models_without_full_attention_are_resumed_too() -> None:
    for model, held in (((RECURRENT,), 0), ((WINDOW, RECURRENT), 2)):
        made = worker(*model)
        made.finish(made.run(tokens(11), 8))
        made.check()
        assert made.resumable(tokens(11)) == 8
        life = made.start(tokens(11))
        made.check()
        assert len(life.lease.used) == held
        made.finish(life)
        made.check()


def test_a_model_of_windows_only_is_resumed_from_what_is_left_of_them() -> None:
    made = worker(WINDOW)
    made.finish(made.run(tokens(11)))
    made.check()
    assert made.resumable(tokens(11)) == 10
    made.evict(WINDOW, 100)
    made.check()
    assert not made.tree.forest.roots, "nodes that hold nothing are gone"


def test_isolation_roots_share_nothing_and_do_not_pile_up() -> None:
    made = worker()
    made.finish(made.run(tokens(9), 8, salt="one"))
    assert made.resumable(tokens(9), "one") == 8
    assert made.resumable(tokens(9), "two") == 0
    for salt in map(str, range(50)):
        made.cancel(made.start(tokens(9), salt))
    assert list(made.tree.forest.roots) == ["one"]
    made.evict(FULL, 100)
    assert not made.tree.forest.roots
    made.check()


def test_a_receiver_uses_all_full_pages_and_the_checkpoint_within_them() -> None:
    made = worker()
    made.finish(made.run(tokens(12), 4))
    life = made.receive(tokens(12))
    made.check()
    assert [node.full for node in made.match(tokens(12)).path] == life.tables.full
    assert life.lease.kept is not None
    assert life.lease.kept.pages == 2
    assert not life.lease.used, "its window pages are its own"


def test_a_match_that_is_older_than_an_eviction_is_our_bug() -> None:
    made = worker(FULL)
    made.finish(made.run(tokens(8)))
    match = made.match(tokens(9))
    made.evict(FULL, 1)
    with pytest.raises(AssertionError, match="older than the last eviction"):
        made.tree.acquire(match)
