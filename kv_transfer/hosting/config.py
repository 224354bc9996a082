"""Settings of the worker process around its engine: address, heartbeats, budgets, and how state passes to others."""

from dataclasses import dataclass

from segue.batch.suffix_costs import Rule
from segue.config import require_above_zero, require_not_negative
from segue.errors import ConfigError
from segue.handoff import TransportName


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """`port` 0 lets the system choose. A peer that says nothing for `silence_s` counts as gone.

    `session_grace_s` is how long requests run on without their router's stream, and how long an ended one is remembered
    for a router that may have missed its end. `drain_s` is what running requests get to finish after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 0
    heartbeat_s: float = 1.0
    silence_s: float = 5.0
    session_grace_s: float = 10.0
    drain_s: float = 30.0
    remembered_max: int = 4096

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError(f"worker.port is {self.port}, it must be between 0 and 65535", param="port")
        require_above_zero("worker.", self, "heartbeat_s", "silence_s", "session_grace_s", "drain_s", "remembered_max")
        if self.silence_s <= self.heartbeat_s:
            raise ConfigError(
                f"worker.silence_s {self.silence_s} must be longer than heartbeat_s {self.heartbeat_s}",
                param="silence_s",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferConfig:
    """How state passes between workers. Both ends of a pair should agree.

    `transports` lists what may be chosen, separated by commas. `lease_s` is how long a promise of room stands without a
    sign of life of the sender. `verify` compares digests of everything that arrives. `ucx_tls` is for NIXL's UCX, empty
    for its own choice. A peer that says nothing for `silence_s` counts as gone. `connect_s` bounds an introduction, the
    self-test included; `settle_s` is how often a silent sender is asked again whether its writes have ended. When more
    than `quarantine_share` of a pool is in quarantine, and some of it for more than `quarantine_s`, the worker drains
    and ends, to be started afresh. A decode worker computes a prompt itself only if no more than `extend_tokens` of it
    are new to its cache (0: never); `extend_by` says whether it always does so then, or by what either way cost lately.
    A decode worker that ends keeps the state of a request that has left it for `keep_s`, for another worker to fetch.
    """

    transports: str = "local,nixl,grpc"
    lease_s: float = 30.0
    verify: bool = False
    ucx_tls: str = ""
    heartbeat_s: float = 1.0
    silence_s: float = 5.0
    connect_s: float = 10.0
    settle_s: float = 1.0
    quarantine_s: float = 120.0
    quarantine_share: float = 0.25
    extend_tokens: int = 256
    extend_by: str = Rule.COST.value
    keep_s: float = 15.0

    def __post_init__(self) -> None:
        unknown = [name for name in self.transports.split(",") if name not in set(TransportName)]
        if unknown:
            known = ", ".join(TransportName)
            raise ConfigError(f"transfer.transports names {unknown[0]!r}; known are {known}", param="transports")
        waits = ("lease_s", "heartbeat_s", "silence_s", "connect_s", "settle_s", "quarantine_s", "keep_s")
        require_above_zero("transfer.", self, *waits)
        require_not_negative("transfer.", self, "extend_tokens")
        if self.extend_by not in set(Rule):
            raise ConfigError(
                f"transfer.extend_by is '{self.extend_by}', it must be one of {', '.join(Rule)}", param="extend_by"
            )
        if self.silence_s <= self.heartbeat_s:
            raise ConfigError(
                f"transfer.silence_s {self.silence_s} must be longer than heartbeat_s {self.heartbeat_s}",
                param="silence_s",
            )

    @property
    def allowed(self) -> tuple[TransportName, ...]:
        """The transports that may be chosen."""
        return tuple(TransportName(name) for name in self.transports.split(","))
