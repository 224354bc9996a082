"""What router and worker say to each other, as plain values; knows nothing of protobuf or gRPC.

The columns of a step are plain lists: a worker builds them with `ndarray.tolist()`, a router walks them once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from segue.batch.news import Ended, Usage
from segue.batch.retraction_figures import RetractionFigures
from segue.batch.sampling import SamplingDefaults
from segue.batch.scores import PromptScores, Scores, Top
from segue.batch.submission import GenerateSpec
from segue.cache.figures import CacheFigures, CacheHits, ChosenPrompts
from segue.ids import Handle, RouterId, WorkerId
from segue.state.replay_figures import ReplayFigures
from segue.state.snapshot.summary import SnapshotSummary

__all__ = [
    "PROTOCOL_VERSION",
    "Accepted",
    "Attach",
    "Attached",
    "CacheFigures",
    "CacheHits",
    "Cancel",
    "ChosenPrompts",
    "Ended",
    "Finish",
    "GenerateSpec",
    "Heartbeat",
    "PoolStatus",
    "PromptScores",
    "ReplayFigures",
    "Resume",
    "RetractionFigures",
    "RouterMessage",
    "Scores",
    "SnapshotFigures",
    "SnapshotSummary",
    "SnapshotTaken",
    "StepNews",
    "TakeSnapshot",
    "Top",
    "Transfers",
    "Usage",
    "WorkerDescription",
    "WorkerMessage",
    "WorkerStatus",
]

PROTOCOL_VERSION = 5


@dataclass(frozen=True, slots=True)
class Resume:
    """A live choice at re-attachment; `next_index` is the first output index the router has not seen.

    `next_position` is the first prompt position whose score it has not seen, 0 for a prompt that is not scored.
    """

    handle: Handle
    attempt: int
    next_index: int
    next_position: int = 0


@dataclass(frozen=True, slots=True)
class Attach:
    """Opens or re-opens a router's session; live choices that `resume` does not name are cancelled."""

    router_id: RouterId
    resume: tuple[Resume, ...] = ()
    protocol_version: int = PROTOCOL_VERSION


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client left: stop, keep nothing."""

    handle: Handle
    attempt: int


@dataclass(frozen=True, slots=True)
class Finish:
    """The router found a stop string: the output ends after `kept` tokens."""

    handle: Handle
    attempt: int
    kept: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Sent by both ends; silence for a whole deadline means that the other end is gone.

    A worker says that it is `draining`; its router then, whether requests could go on `elsewhere`, with their state. It
    is `ending` when little is left of the time after which what still runs is lost.
    """

    sequence: int
    draining: bool = False
    elsewhere: bool = False
    ending: bool = False


@dataclass(frozen=True, slots=True)
class Accepted:
    """A worker's answer to a request: its number there, and whether it goes on from a snapshot."""

    handle: Handle
    restored: bool = False


@dataclass(frozen=True, slots=True)
class Attached:
    """Answer to Attach. `unknown` are the resumed handles that the worker does not hold any more."""

    worker_id: WorkerId
    unknown: tuple[Handle, ...] = ()


@dataclass(frozen=True, slots=True)
class StepNews:
    """All news of one step for one router, in columns of one length.

    Entry i: choice `handles[i]`, try `attempts[i]`, has `token_ids[i]` at output index `indices[i]`; entries of one
    handle are in index order. `logprobs` and `tops` are empty when no entry asked for them, else as long as the rest.
    `scores` are of prompts; those of a choice come in order, and before its first token.
    """

    number: int
    handles: Sequence[int] = ()
    attempts: Sequence[int] = ()
    indices: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    logprobs: Sequence[float] = ()
    tops: Sequence[Top] = ()
    ended: Sequence[Ended] = field(default=())
    scores: Sequence[PromptScores] = field(default=())

    def __post_init__(self) -> None:
        count = len(self.handles)
        assert len(self.attempts) == count, "one attempt per entry"
        assert len(self.indices) == count, "one index per entry"
        assert len(self.token_ids) == count, "one token per entry"
        assert len(self.logprobs) in (0, count), "all logprobs or none"
        assert len(self.tops) in (0, count), "all tops or none"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerDescription:
    """Who a worker is. `max_len` is the longest prompt plus output, in tokens, that it can ever serve.

    `snapshots`: it has a folder of them.
    """

    worker_id: WorkerId
    role: str
    model_name: str
    fingerprint: str
    vocab_size: int
    max_len: int
    eos_token_ids: tuple[int, ...]
    page_tokens: int
    deterministic: bool
    defaults: SamplingDefaults = field(default_factory=SamplingDefaults)
    protocol_version: int = PROTOCOL_VERSION
    snapshots: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeSnapshot:
    """Asks for the whole state of a live choice. With `copy` it runs on; else it leaves its worker, as MOVED.

    `served` is how many tokens of its output the client has, `about` a JSON object that the router will want back. It
    is to be called `snapshot_id`, 32 random hexadecimal digits. From one that is `parked` the router itself goes on.
    """

    router_id: RouterId
    handle: Handle
    attempt: int
    copy: bool
    served: int
    about: bytes
    snapshot_id: str
    parked: bool = False


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    """A snapshot that is durable; it holds the state of `computed` positions."""

    snapshot_id: str
    computed: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotFigures:
    """Snapshots that a worker wrote since its start: whose requests left it, or ran on; and that it could not write."""

    exported: int = 0
    copied: int = 0
    failed: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """The disjoint sets of one component's pool, in units (pages or slots)."""

    component: str
    capacity: int
    free: int
    held: int
    cached: int
    reserved: int
    quarantined: int
    sink: int
    unit_bytes: int


@dataclass(frozen=True, slots=True)
class Transfers:
    """Handoffs that arrived at a worker since its start.

    `latency_s` sums up, from the promise of room to the complete state; `speed_gb_s` sums up what each one reached. Of
    running requests, `moved_in` came with their state, `moved_out` were taken away with it, and `moved_lost` left while
    nobody came for it.
    """

    count: int = 0
    latency_s: float = 0.0
    bytes: int = 0
    speed_gb_s: float = 0.0
    moved_in: int = 0
    moved_out: int = 0
    moved_lost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """Load of a worker, every one of its pools, and what came of its prefix cache, retraction, replay and snapshots.

    Of the waiting, `unpromised` await their state from another worker and have no room promised; `promised` ones have,
    and are not among the waiting. `tp_size` ranks share its state.
    """

    worker_id: WorkerId
    ready: bool
    running: int
    waiting: int
    steps: int
    generated_tokens: int
    prefill_tokens: int
    tp_size: int = 1
    pools: tuple[PoolStatus, ...] = ()
    unpromised: int = 0
    promised: int = 0
    transfers: Transfers = Transfers()
    cache: CacheFigures = field(default_factory=CacheFigures)
    retraction: RetractionFigures = field(default_factory=RetractionFigures)
    replay: ReplayFigures = field(default_factory=ReplayFigures)
    snapshots: SnapshotFigures = SnapshotFigures()

    @property
    def live_count(self) -> int:
        """Requests that have not ended: also those whose state is on its way, or off the device.

        Those that come back at this very moment are in none of these figures.
        """
        return self.running + self.waiting + self.promised + self.retraction.waiting


RouterMessage: TypeAlias = Attach | Cancel | Finish | Heartbeat
WorkerMessage: TypeAlias = Attached | StepNews | Heartbeat
