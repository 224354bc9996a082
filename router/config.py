"""What a router may do and for how long it waits; knows nothing of how that is carried out."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from segue.config import read_secret, require_above_zero, require_at_least_one, require_not_negative
from segue.errors import ConfigError


class PlacementPolicy(StrEnum):
    """How a worker is chosen among the ready ones."""

    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Limits, waits and the address of the front door. Every wait is in seconds.

    `inflight_max` counts choices that workers hold for this router, `queue_max` requests that wait for room among them.
    `request_timeout_s` bounds a whole request. A client that takes nothing of its answer for `client_stall_s` is let go
    of before. `placement_wait_s` is how long a new request may wait when no worker is ready, `continuation_grace_s` how
    long one whose worker was lost, or has ended after it parked it, may. `reattach_grace_s` is how long a broken
    session may take to come back before its requests are continued elsewhere; they are at once where nobody listens any
    more.
    `breaker_faults` server faults in a row take a worker out for `breaker_cooldown_s`. `api_key` empty means that
    everybody may call, `admin_key` empty that nobody may take, see or resume snapshots; each may be in a file instead,
    which nobody sees in a list of processes. A worker gets `snapshot_timeout_s` to write one, or to check its digests.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str = ""
    api_key_file: str = ""
    admin_key: str = ""
    admin_key_file: str = ""
    placement: str = PlacementPolicy.LEAST_LOADED.value
    inflight_max: int = 512
    queue_max: int = 1024
    queue_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    client_stall_s: float = 60.0
    choices_max: int = 128
    body_bytes_max: int = 4 << 20
    drain_s: float = 30.0
    placement_wait_s: float = 1.0
    continuation_grace_s: float = 300.0
    attempts_max: int = 8
    call_timeout_s: float = 10.0
    heartbeat_s: float = 1.0
    heartbeat_timeout_s: float = 5.0
    reattach_grace_s: float = 3.0
    reconnect_wait_s: float = 0.1
    reconnect_wait_s_max: float = 2.0
    finish_wait_s: float = 2.0
    snapshot_timeout_s: float = 120.0
    breaker_faults: int = 3
    breaker_cooldown_s: float = 5.0

    def __post_init__(self) -> None:
        for name in ("api_key", "admin_key"):
            object.__setattr__(self, name, self._key(name))
        if self.placement not in [policy.value for policy in PlacementPolicy]:
            known = ", ".join(policy.value for policy in PlacementPolicy)
            raise ConfigError(f"router.placement is '{self.placement}', it must be one of {known}", param="placement")
        require_at_least_one("router.", self, *_COUNTS)
        require_above_zero("router.", self, *_WAITS)
        require_not_negative("router.", self, *_SPANS)
        if self.admin_key and self.admin_key == self.api_key:
            raise ConfigError("router.admin_key is the api_key: every client could take snapshots", param="admin_key")
        if self.choices_max > self.inflight_max:
            raise ConfigError(
                f"router.choices_max {self.choices_max} is above inflight_max {self.inflight_max}: "
                "a request of that many choices could never start",
                param="choices_max",
            )
        if self.heartbeat_timeout_s <= self.heartbeat_s:
            raise ConfigError(
                f"router.heartbeat_timeout_s {self.heartbeat_timeout_s} must be above heartbeat_s {self.heartbeat_s}",
                param="heartbeat_timeout_s",
            )

    def _key(self, name: str) -> str:
        """What the setting says, or the file that is named beside it."""
        given, file = str(getattr(self, name)), str(getattr(self, f"{name}_file"))
        if not file:
            return given
        key = read_secret(Path(file), f"router.{name}_file", f"{name}_file")
        if not key:
            raise ConfigError(f"router.{name}_file {file} is empty", param=f"{name}_file")
        if given not in ("", key):
            raise ConfigError(f"router.{name} and router.{name}_file say different keys", param=name)
        return key


_COUNTS = ("inflight_max", "choices_max", "body_bytes_max", "attempts_max", "breaker_faults")
_SPANS = ("queue_max", "placement_wait_s", "continuation_grace_s", "reattach_grace_s", "drain_s")
_WAITS = (
    "queue_timeout_s",
    "request_timeout_s",
    "client_stall_s",
    "call_timeout_s",
    "heartbeat_s",
    "heartbeat_timeout_s",
    "reconnect_wait_s",
    "reconnect_wait_s_max",
    "finish_wait_s",
    "snapshot_timeout_s",
    "breaker_cooldown_s",
)
