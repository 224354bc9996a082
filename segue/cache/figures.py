"""What prefix reuse did and holds at one worker, as a plain value; counts nothing itself."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CacheHits:
    """Reused tokens of all matches that one component limited; `limited_by` is None where nothing did."""

    limited_by: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class ChosenPrompts:
    """Prompts that a prefill worker was named for and that were computed by a worker in role `computed_by`, and why."""

    computed_by: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFigures:
    """Counted since the engine's start, but for `floor_tokens`, which is so now.

    `looked_up_tokens` are the known tokens of requests that started here; a request whose state came from elsewhere is
    not among them. `hits` are those of them that were not computed again. `checkpoints_skipped` were due and found
    no slot, or no room for the pages below them; `checkpoints_duplicate` were in the cache already.

    The retention floor keeps window pages below the window of a running request. `floor_tokens` are the positions of
    those pages, summed over requests (a page that two requests keep counts twice), `floor_tokens_max` the most of any
    one request so far. `floor_tokens_decoding` sums up what a request had after each of its decode steps, over all
    `decode_rows` of such. `floors_dropped` were given up because memory was short.

    Prompts that a prefill worker was named for are in `prompts`: `prompts_extended` of them were computed here all the
    same, `prompts_sent` were not. One that was to be computed here, and lost what it was to go on from, is in both.
    """

    looked_up_tokens: int = 0
    hits: tuple[CacheHits, ...] = ()
    checkpoints_taken: int = 0
    checkpoints_duplicate: int = 0
    checkpoints_skipped: int = 0
    checkpoints_evicted: int = 0
    checkpoints_resumed: int = 0
    floors_dropped: int = 0
    floor_tokens: int = 0
    floor_tokens_max: int = 0
    floor_tokens_decoding: int = 0
    decode_rows: int = 0
    prompts: tuple[ChosenPrompts, ...] = ()

    @property
    def prompts_extended(self) -> int:
        return sum(prompts.count for prompts in self.prompts if prompts.computed_by == "decode")

    @property
    def prompts_sent(self) -> int:
        return sum(prompts.count for prompts in self.prompts if prompts.computed_by == "prefill")

    @property
    def reused_tokens(self) -> int:
        """Tokens that were not computed again."""
        return sum(hits.tokens for hits in self.hits)

    @property
    def hit_share(self) -> float | None:
        """Reused tokens of those looked up; None before the first look."""
        return self.reused_tokens / self.looked_up_tokens if self.looked_up_tokens else None

    @property
    def floor_tokens_mean(self) -> float:
        """What one request had because of the floor, as the mean over all decode steps; 0 before the first."""
        return self.floor_tokens_decoding / self.decode_rows if self.decode_rows else 0.0
