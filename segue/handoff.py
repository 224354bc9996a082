"""What two workers say about one request's state on its way between them; knows nothing of tensors or the wire.

The sender computed the state, the receiver goes on with it. The receiver promises units (a reservation) and names the
promise by a ticket, which every later message carries: one that names another ticket changes nothing.
"""

from dataclasses import dataclass
from enum import StrEnum

from segue.batch.news import Usage
from segue.batch.submission import GenerateSpec
from segue.errors import ServingError
from segue.ids import RequestId, ReservationId, WorkerId
from segue.state.spec import ComponentName
from segue.tokens import EmittedToken


class Part(StrEnum):
    """What arrives together: the state to run from, or the prompt checkpoint that only the receiver's cache wants."""

    STATE = "state"
    CHECKPOINT = "checkpoint"


class TransportName(StrEnum):
    """How bytes reach the receiver's memory, fastest first."""

    LOCAL = "local"
    NIXL = "nixl"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Ticket:
    """Names one promise of units for one attempt of one request."""

    request_id: RequestId
    reservation: ReservationId
    attempt: int

    def __str__(self) -> str:
        return f"request {self.request_id} (attempt {self.attempt}, reservation {self.reservation})"


@dataclass(frozen=True, slots=True)
class UnitRow:
    """Units of one component for pages [first, first + len(units)) of a prompt; a slot is page 0 of its row.

    A unit of None is a page that its owner does not hold (out of the window).
    """

    part: Part
    component: ComponentName
    first: int
    units: tuple[int | None, ...]

    @property
    def stop(self) -> int:
        return self.first + len(self.units)


@dataclass(frozen=True, slots=True)
class Terms:
    """From what both ends compute the plan.

    `prompt_tokens` is n. Full pages of the first `held_tokens` positions are with the receiver already. `checkpoint` is
    c_k, the depth of the prompt checkpoint; None when there is none, or the receiver wants none.
    """

    prompt_tokens: int
    held_tokens: int
    checkpoint: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Receiver: compute this prompt. `held_tokens` is a hint; only a grant's terms count."""

    worker_id: WorkerId
    transport: TransportName
    held_tokens: int
    request: GenerateSpec


@dataclass(frozen=True, slots=True)
class Ask:
    """Sender: the request's turn is near, promise me units. `number` comes back in the grant."""

    number: int
    prompt_tokens: int
    checkpoint: int | None


@dataclass(frozen=True, slots=True)
class Grant:
    """Receiver: these units are yours to write, until the lease runs out."""

    ticket: Ticket
    ask: int
    terms: Terms
    plan_digest: str
    lease_s: float
    rows: tuple[UnitRow, ...]


@dataclass(frozen=True, slots=True)
class Progress:
    """Sender: alive, and everything below `computed` is on its way. `sequence` comes back in Renewed."""

    ticket: Ticket
    sequence: int
    computed: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """Receiver: the lease counts from when you sent that progress."""

    ticket: Ticket
    sequence: int


@dataclass(frozen=True, slots=True)
class BlockBytes:
    """Sender, where bytes travel as messages: `payload` is cut at `lengths` and goes to `offsets` of the arena."""

    ticket: Ticket
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    payload: bytes
    crc32: int


@dataclass(frozen=True, slots=True)
class StateDigest:
    """Digest of one component's logical content, the same for any page size and place in the pool."""

    component: ComponentName
    value: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Sender: every write of the state has settled. The request's first token and what belongs to it.

    Without a ticket nothing was reserved or sent, because the first token ended the request; `reason` says how.
    """

    ticket: Ticket | None
    token: EmittedToken
    usage: Usage
    digests: tuple[StateDigest, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointPushed:
    """Sender: every write of the prompt checkpoint has settled."""

    ticket: Ticket
    depth: int
    digests: tuple[StateDigest, ...] = ()


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Receiver: stop, write nothing more under this ticket, and say when all writes have settled."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Settled:
    """Sender: nothing is written under this ticket, and nothing ever will be."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class HandoffFailed:
    """Sender: the request ends with this error here; Settled follows if something was promised."""

    error: ServingError


@dataclass(frozen=True, slots=True)
class Beat:
    """Either end: alive."""

    sequence: int


FromReceiver = Start | Grant | Renewed | Withdraw | Beat
FromSender = Ask | Progress | BlockBytes | Finished | CheckpointPushed | Settled | HandoffFailed | Beat
