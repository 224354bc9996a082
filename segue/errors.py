"""The error tree: everything an outside cause can do to a request, with its HTTP and gRPC status in one table.

Our own mistakes are asserts and end the process; they are not here.
"""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """How one error class looks on both protocols. `grpc` is the name of a `grpc.StatusCode`."""

    http: int
    grpc: str
    openai_type: str
    code: str


class ServingError(Exception):
    """An outside cause (client, peer, disk, full pool) stopped something; the message says what, who and what to do."""

    kind: ClassVar[ErrorKind] = ErrorKind(500, "INTERNAL", "server_error", "internal_error")

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def client_fault(self) -> bool:
        """True when the client must change something; such an error never trips a breaker."""
        return 400 <= self.kind.http < 500


class InvalidRequest(ServingError):
    """The request can never be served as it stands."""

    kind = ErrorKind(400, "INVALID_ARGUMENT", "invalid_request_error", "invalid_request")


class ContextTooLong(InvalidRequest):
    """Prompt and requested output do not fit the model or the whole pool."""

    kind = ErrorKind(400, "INVALID_ARGUMENT", "invalid_request_error", "context_length_exceeded")


class Unauthorized(ServingError):
    """A key is configured and the request carries none, or another."""

    kind = ErrorKind(401, "UNAUTHENTICATED", "invalid_request_error", "invalid_api_key")


class ModelNotFound(ServingError):
    """The request names a model that this cluster does not serve."""

    kind = ErrorKind(404, "NOT_FOUND", "invalid_request_error", "model_not_found")


class DuplicateRequest(ServingError):
    """The same request, choice and attempt is already live on this worker."""

    kind = ErrorKind(409, "ALREADY_EXISTS", "invalid_request_error", "duplicate_request")


class QueueTimeout(ServingError):
    """The request waited in the queue longer than its configured limit."""

    kind = ErrorKind(408, "DEADLINE_EXCEEDED", "timeout_error", "queue_timeout")


class QueueFull(ServingError):
    """A bounded queue has no room; the client should come back later (`Retry-After`)."""

    kind = ErrorKind(429, "RESOURCE_EXHAUSTED", "rate_limit_error", "queue_full")


class Cancelled(ServingError):
    """The client left, or asked to stop."""

    kind = ErrorKind(499, "CANCELLED", "invalid_request_error", "cancelled")


class WorkerUnavailable(ServingError):
    """No worker is ready, or the one that held the request is gone."""

    kind = ErrorKind(503, "UNAVAILABLE", "server_error", "worker_unavailable")


class RankLost(WorkerUnavailable):
    """A tensor-parallel rank of this worker was killed, or does not answer: the worker cannot go on."""


class RankFailed(ServingError):
    """A tensor-parallel rank of this worker broke an invariant of its own, which is as if the worker had."""


class PrefillUnavailable(WorkerUnavailable):
    """The worker that was to compute a request's prompt is gone, or refused; another may do it."""

    kind = ErrorKind(503, "UNAVAILABLE", "server_error", "prefill_unavailable")


class DeadlineExceeded(ServingError):
    """The request's own deadline passed."""

    kind = ErrorKind(504, "DEADLINE_EXCEEDED", "timeout_error", "deadline_exceeded")


class PoolExhausted(ServingError):
    """A pool has fewer free units than an allocation wants; nothing was taken."""

    kind = ErrorKind(503, "RESOURCE_EXHAUSTED", "server_error", "pool_exhausted")

    def __init__(self, pool: str, wanted: int, free: int) -> None:
        super().__init__(f"pool '{pool}' has {free} free units, {wanted} wanted")
        self.pool, self.wanted, self.free = pool, wanted, free


class ConfigError(ServingError):
    """A configuration, manifest or checkpoint cannot be used; raised at start-up only."""

    kind = ErrorKind(500, "FAILED_PRECONDITION", "server_error", "config_error")


class CheckpointError(ConfigError):
    """A model folder is not what its config says (architecture, dtype, layer type, tensor)."""


class FingerprintMismatch(ServingError):
    """Two processes disagree on model, layouts or protocol; both values are in the message."""

    kind = ErrorKind(412, "FAILED_PRECONDITION", "server_error", "fingerprint_mismatch")


class TransferRefused(ServingError):
    """Two workers cannot exchange this state: plans, shards, metadata or a grant do not fit; nothing was written."""

    kind = ErrorKind(412, "FAILED_PRECONDITION", "server_error", "transfer_refused")


class TransferFailed(ServingError):
    """State of a request did not get across; the message names request, peer, component and pages."""

    kind = ErrorKind(503, "UNAVAILABLE", "server_error", "transfer_failed")


class PeerLost(TransferFailed):
    """The other worker of a transfer is gone, or its connection is."""

    kind = ErrorKind(503, "UNAVAILABLE", "server_error", "peer_lost")


class LeaseExpired(TransferFailed):
    """A reservation was not renewed in time; nothing more may be written under it."""

    kind = ErrorKind(504, "DEADLINE_EXCEEDED", "timeout_error", "lease_expired")


class DigestMismatch(TransferFailed):
    """State arrived other than it was sent; it is not used."""

    kind = ErrorKind(503, "DATA_LOSS", "server_error", "digest_mismatch")


class SnapshotError(ServingError):
    """Something about a snapshot stopped a request, and left the snapshot as it was."""

    kind = ErrorKind(409, "FAILED_PRECONDITION", "invalid_request_error", "snapshot_error")


class SnapshotsOff(SnapshotError):
    """This server keeps no snapshots. Not a 501: nothing is wrong with a worker that was set up so."""

    kind = ErrorKind(404, "FAILED_PRECONDITION", "invalid_request_error", "snapshots_off")


class SnapshotNotFound(SnapshotError):
    """No snapshot of this id is visible: there never was one, it is not complete, it was used up, or has expired."""

    kind = ErrorKind(404, "NOT_FOUND", "invalid_request_error", "snapshot_not_found")


class SnapshotVersionMismatch(SnapshotError):
    """The snapshot is of a format that this build does not read; both versions are in the message."""

    kind = ErrorKind(409, "FAILED_PRECONDITION", "invalid_request_error", "snapshot_version_mismatch")


class SnapshotLayoutMismatch(SnapshotError):
    """The snapshot's state does not lie as the model here keeps it (layers, heads, dtypes, window)."""

    kind = ErrorKind(409, "FAILED_PRECONDITION", "invalid_request_error", "snapshot_layout_mismatch")


class SnapshotSourceMismatch(SnapshotError):
    """The snapshot is of another model, other weights or another build policy; both values are in the message."""

    kind = ErrorKind(409, "FAILED_PRECONDITION", "invalid_request_error", "snapshot_source_mismatch")


class SnapshotManifestInvalid(SnapshotError):
    """A snapshot's manifest or marker is not what the format says, or not what was committed."""

    kind = ErrorKind(422, "DATA_LOSS", "invalid_request_error", "snapshot_manifest_invalid")


class SnapshotForeign(SnapshotError):
    """A key is configured, and the snapshot is unsigned or signed with another."""

    kind = ErrorKind(403, "PERMISSION_DENIED", "invalid_request_error", "snapshot_foreign")


class SnapshotDigestMismatch(SnapshotError):
    """A payload is not the one that was written; the message names file and tensor."""

    kind = ErrorKind(422, "DATA_LOSS", "invalid_request_error", "snapshot_digest_mismatch")


class SnapshotCapacity(SnapshotError):
    """The request would not fit the pools here, even if they were empty."""

    kind = ErrorKind(409, "FAILED_PRECONDITION", "invalid_request_error", "snapshot_capacity")


class SnapshotClaimed(SnapshotError):
    """Somebody is continuing this snapshot; the message says who, and until when unless they renew."""

    kind = ErrorKind(409, "ABORTED", "invalid_request_error", "snapshot_claimed")


class SnapshotNotReady(SnapshotError):
    """The request has no whole state at its worker at this moment: it waits, or is being computed or moved."""

    kind = ErrorKind(409, "FAILED_PRECONDITION", "invalid_request_error", "snapshot_not_ready")


class SnapshotMemoryShort(SnapshotNotReady):
    """There is no memory for a request's state now, to copy or to read it; the message says how many bytes it has."""


class SnapshotFolderFull(SnapshotError):
    """The folder's limits or its disk leave no room; nothing of the snapshot stays."""

    kind = ErrorKind(507, "RESOURCE_EXHAUSTED", "server_error", "snapshot_folder_full")


class SnapshotFailed(SnapshotError):
    """The disk of the snapshot folder failed; the message says at what, where and how.

    One that was to be written was not, and will not be.
    """

    kind = ErrorKind(503, "UNAVAILABLE", "server_error", "snapshot_failed")


def error_kinds() -> dict[str, type[ServingError]]:
    """Every error class by its code, so that a receiver can raise what the sender meant."""
    found: dict[str, type[ServingError]] = {}
    pending: list[type[ServingError]] = [ServingError]
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        found.setdefault(cls.kind.code, cls)
    return found
