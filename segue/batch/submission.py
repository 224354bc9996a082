"""What a router asks of a worker for one choice of one request; a plain value that both sides share."""

from collections.abc import Sequence
from dataclasses import dataclass

from segue.batch.sampling import SamplingParams
from segue.ids import Handle, RequestId, RouterId


@dataclass(frozen=True, slots=True)
class Moved:
    """Where the state of a request is kept that has left its worker: host:port, and what it was called there."""

    address: str
    handle: Handle
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateSpec:
    """One choice to generate.

    `prompt` is a `token_array` where it comes from the wire. `emitted` is output that the client already has (a
    continuation): positions, penalties and the budget count it, and it is never sampled again. `deadline_s` is the
    remaining time from now. `extension` is opaque and travels with the request. `prefill_address` (host:port) is the
    worker that computes the prompt; empty where the one asked does it. With `score_from` the prompt is scored: logprobs
    of its tokens behind that position are wanted, with as many alternatives as `sampling.logprobs` says, and nothing
    from that position on is reused. The state of a request that had begun elsewhere comes from the snapshot
    `snapshot_id`, or from the worker that it was `moved` away from. A snapshot that is `snapshot_doubtful` may never
    have been written: then it never will be, and the request is computed from its tokens. `claimant` names all attempts
    of this choice, by 32 hexadecimal digits: a later one has the claims of an earlier one.
    """

    router_id: RouterId
    request_id: RequestId
    attempt: int
    prompt: Sequence[int]
    sampling: SamplingParams
    emitted: tuple[int, ...] = ()
    priority: int = 0
    deadline_s: float | None = None
    extension: bytes = b""
    cache_salt: str = ""
    prefill_address: str = ""
    score_from: int | None = None
    snapshot_id: str = ""
    moved: Moved | None = None
    claimant: str = ""
    snapshot_doubtful: bool = False
