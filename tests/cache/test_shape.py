"""The arithmetic of cached prefixes, and the settings that it refuses."""

import pytest

from segue.cache.keys import PageKeys
from segue.cache.shape import CacheShape, Strategy
from segue.errors import ConfigError
from segue.tokens import token_array


def shape(
    *, page: int = 4, window: int | None = 6, grid: int = 8, interval: int = 16, strategy: Strategy | None = None
) -> CacheShape:
    return CacheShape(
        page_tokens=page,
        full=True,
        window=window,
        recurrent=True,
        grid=grid,
        interval=interval,
        strategy=strategy or Strategy.EXTRA_BUFFER,
    )


@pytest.mark.parametrize(
    ("window", "pages", "span"),
    [
        (6, 5, range(3, 5)),
        (8, 5, range(3, 5)),
        (9, 5, range(2, 5)),
        (1, 5, range(4, 5)),
        (0, 5, range(5, 5)),
        (99, 5, range(5)),
        (6, 0, range(0)),
        (None, 5, range(5, 5)),
    ],
)
def test_a_window_spans_the_pages_that_meet_its_positions(window: int | None, pages: int, span: range) -> None:
    assert shape(window=window).window_span(pages) == span


def test_the_prompts_checkpoint_leaves_a_token_to_compute() -> None:
    assert [shape().prompt_checkpoint(n) for n in (1, 8, 9, 16, 17)] == [0, 0, 8, 8, 16]


def test_a_branch_is_a_grid_point_deeper_than_what_can_be_resumed() -> None:
    assert shape().branch(full_depth=20, known_tokens=30, resumable=8) == 16
    assert shape().branch(full_depth=20, known_tokens=30, resumable=16) is None
    assert shape().branch(full_depth=16, known_tokens=16, resumable=0) == 8
    assert shape().branch(full_depth=4, known_tokens=30, resumable=0) is None


@pytest.mark.parametrize("interval", [0, -8, 12])
def test_an_interval_off_the_grid_is_refused_with_both_numbers(interval: int) -> None:
    with pytest.raises(ConfigError, match=f"interval of {interval} tokens is no multiple .* grid of 8"):
        shape(interval=interval)


def test_donated_slots_need_pages_of_one_token() -> None:
    with pytest.raises(ConfigError, match="no_buffer needs pages of 1 token, not 4"):
        shape(strategy=Strategy.NO_BUFFER)
    assert shape(page=1, strategy=Strategy.NO_BUFFER).strategy is Strategy.NO_BUFFER


def test_keys_are_made_once_each_and_for_whole_pages() -> None:
    asked = []

    def token_bytes(start: int, stop: int) -> bytes:
        asked.append((start, stop))
        return token_array(range(start, stop)).tobytes()

    keys = PageKeys(4, token_bytes)
    first = list(keys.first(2))
    assert keys.first(1)[:2] == first
    assert keys.first(3)[:2] == first
    assert len(set(keys.first(3))) == 3
    assert asked == [(0, 8), (8, 12)]
