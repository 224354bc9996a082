"""The arithmetic of cached prefixes for one model: page edges, window reach, checkpoint grids; knows no nodes."""

from dataclasses import dataclass
from enum import StrEnum

from segue.errors import ConfigError
from segue.state.coverage import Coverage
from segue.state.needs import first_window_page
from segue.state.spec import ComponentName

COVERAGE = Coverage("the prefix cache", ComponentName.FULL, ComponentName.WINDOW, ComponentName.RECURRENT)


class Strategy(StrEnum):
    """How checkpoints come about."""

    EXTRA_BUFFER = "extra_buffer"
    """Copied into a slot of their own while the request runs on."""
    NO_BUFFER = "no_buffer"
    """The working slot itself is donated, at the end of the prompt and of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """`window` is W or None; `grid` is G and `interval` is I of STATE.md, both in tokens.

    Raises ConfigError for combinations that cannot work.
    """

    page_tokens: int
    full: bool
    window: int | None
    recurrent: bool
    grid: int
    interval: int
    strategy: Strategy = Strategy.EXTRA_BUFFER

    def __post_init__(self) -> None:
        assert self.full or self.window is not None or self.recurrent, "a model without state has nothing to cache"
        assert self.grid % self.page_tokens == 0, "checkpoints stand on page edges"
        if self.interval <= 0 or self.interval % self.grid:
            raise ConfigError(
                f"the track interval of {self.interval} tokens is no multiple of the checkpoint grid of {self.grid} "
                f"(pages of {self.page_tokens} tokens)",
                param="interval",
            )
        if self.strategy is Strategy.NO_BUFFER and self.page_tokens != 1:
            raise ConfigError(
                f"strategy {self.strategy} needs pages of 1 token, not {self.page_tokens}: the end of a request is "
                f"seldom a page's; take {Strategy.EXTRA_BUFFER} or page_tokens = 1",
                param="strategy",
            )

    def window_span(self, pages: int) -> range:
        """Indices of the pages that meet [c - W, c) for c at the end of page `pages - 1`."""
        if not self.window:
            return range(pages, pages)
        return range(first_window_page(pages * self.page_tokens, self.window, self.page_tokens), pages)

    def grid_below(self, tokens: int) -> int:
        """The deepest point of the checkpoint grid that is not beyond `tokens`."""
        return tokens // self.grid * self.grid

    def prompt_checkpoint(self, prompt_tokens: int) -> int:
        """c_k: where a prompt of n tokens leaves a checkpoint, 0 for nowhere. One token is always left to compute."""
        return self.grid_below(prompt_tokens - 1)

    def branch(self, full_depth: int, known_tokens: int, resumable: int) -> int | None:
        """Where a prefix leaves the cached ones deeper than it can be resumed: a checkpoint there serves the next."""
        depth = self.grid_below(min(full_depth, known_tokens - 1))
        return depth if depth > resumable else None
