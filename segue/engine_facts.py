"""What the outside may know of an engine: what it is, and how it is doing; plain values."""

from dataclasses import dataclass

from segue.batch.retraction_figures import RetractionFigures
from segue.batch.role import Role
from segue.batch.sampling import SamplingDefaults
from segue.cache.figures import CacheFigures
from segue.state.layout import UnitLayout
from segue.state.pool import PoolCounts
from segue.state.replay_figures import ReplayFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the outside may know of the engine's model and limits."""

    name: str
    vocab_size: int
    max_len: int
    eos_token_ids: tuple[int, ...]
    defaults: SamplingDefaults
    page_tokens: int
    dtype: str
    deterministic: bool
    window: int | None
    layouts: tuple[UnitLayout, ...]
    role: Role = Role.BOTH

    @property
    def tp_size(self) -> int:
        """Tensor-parallel ranks that share the state; of a model without any there is one."""
        return self.layouts[0].shard.tp_size if self.layouts else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatus:
    """Load, the disjoint sets of every pool, and what came of the prefix cache, of retraction and of replay.

    Of the `waiting`, `unpromised` await their state from another worker and have no promise of room yet; `promised`
    ones have it, and are not among the waiting.
    """

    running: int
    waiting: int
    unpromised: int
    promised: int
    steps: int
    generated_tokens: int
    prefill_tokens: int
    pools: tuple[PoolCounts, ...]
    cache: CacheFigures
    retraction: RetractionFigures
    replay: ReplayFigures
