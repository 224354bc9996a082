"""Figures of the prefix cache: sums by what limited a match, and the floor's cost of each request."""

from segue.batch.cache_tally import CacheTally
from segue.cache.figures import CacheFigures, CacheHits
from segue.cache.shape import CacheShape
from segue.cache.tree import PrefixTree
from segue.ids import Handle
from segue.state.pool import Pool
from segue.state.spec import ComponentName

PAGE = 4
A, B = Handle(1), Handle(2)


def figures(tally: CacheTally) -> CacheFigures:
    shape = CacheShape(page_tokens=PAGE, full=True, window=None, recurrent=False, grid=PAGE, interval=PAGE)
    return tally.figures(PrefixTree(shape, {ComponentName.FULL: Pool("full", 2)}, lambda slot: None))


def test_nothing_has_happened_before_the_first_request() -> None:
    fresh = figures(CacheTally(PAGE))
    assert fresh == CacheFigures()
    assert fresh.hit_share is None
    assert fresh.floor_tokens_mean == 0


def test_hits_add_up_by_the_component_that_limited_them() -> None:
    tally = CacheTally(PAGE)
    tally.started(100, 0, ComponentName.FULL)
    tally.started(100, 40, None)
    tally.started(100, 20, ComponentName.RECURRENT)
    tally.started(100, 30, ComponentName.RECURRENT)
    shown = figures(tally)
    assert shown.hits == (CacheHits("recurrent", 50), CacheHits(None, 40))
    assert (shown.looked_up_tokens, shown.reused_tokens, shown.hit_share) == (400, 90, 90 / 400)


def test_what_the_floor_keeps_is_told_now_at_most_and_per_decode_step() -> None:
    tally = CacheTally(PAGE)
    tally.retains(A, 2)
    tally.retains(B, 3)
    tally.decoded(A)
    assert figures(tally).floor_tokens == 5 * PAGE
    tally.retains(B, 1)
    tally.decoded(B)
    tally.retains(A, 0)
    tally.decoded(A)
    shown = figures(tally)
    assert (shown.floor_tokens, shown.floor_tokens_max) == (PAGE, 3 * PAGE)
    assert (shown.decode_rows, shown.floor_tokens_mean) == (3, (2 + 1 + 0) * PAGE / 3)
    tally.retains(B, 0)
    assert figures(tally).floor_tokens == 0
    assert figures(tally).floor_tokens_max == 3 * PAGE


def test_a_request_that_never_kept_anything_may_end() -> None:
    tally = CacheTally(PAGE)
    tally.retains(A, 0)
    assert tally.retained(A) == 0
    assert figures(tally) == CacheFigures()
