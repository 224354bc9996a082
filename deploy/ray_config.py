"""How many replicas of each role a cluster keeps, on what kind of node, and how closely it watches them."""

from dataclasses import dataclass

from segue.config import require_above_zero, require_not_negative
from segue.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleConfig:
    """Replicas of one role. With `replicas_max` above `replicas` their number follows what there is to do.

    `target_requests` is what one replica should have, queued requests included. `tp` tensor-parallel ranks share one
    (0: `engine.tp`). `cpus` and `gpus` are what Ray sets aside for each, all its ranks together; `node_labels`
    ("key=value,key=value") names the nodes that may run one.
    """

    replicas: int = 0
    replicas_max: int = 0
    target_requests: float = 16.0
    tp: int = 0
    cpus: float = 0.0
    gpus: float = 0.0
    node_labels: str = ""

    @property
    def scales(self) -> bool:
        """Whether the number of replicas follows what there is to do."""
        return self.replicas_max > self.replicas

    def __post_init__(self) -> None:
        require_not_negative("", self, "replicas", "tp", "cpus", "gpus")
        require_above_zero("", self, "target_requests")
        if self.replicas_max and not 1 <= self.replicas <= self.replicas_max:
            raise ConfigError(
                f"replicas_max is {self.replicas_max} and replicas {self.replicas}; replicas, which is how many there "
                f"are at least, must lie between 1 and replicas_max (0: a fixed number)",
                param="replicas_max",
            )
        labels_of(self.node_labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayConfig:
    """The cluster and how it watches replicas. `address` empty starts Ray on this machine.

    A process says that it serves every `heartbeat_s`, and counts as gone `lease_s` after the last time. `health_s` is
    how often a replica is asked for its health, `health_timeout_s` what it gets to answer (a step of the engine may lie
    between). Waits before scaling damp it: `upscale_s`, `downscale_s`.
    """

    address: str = ""
    routers: int = 1
    router_cpus: float = 0.0
    router_node_labels: str = ""
    heartbeat_s: float = 0.5
    lease_s: float = 3.0
    health_s: float = 1.0
    health_timeout_s: float = 30.0
    upscale_s: float = 5.0
    downscale_s: float = 60.0

    def __post_init__(self) -> None:
        require_above_zero("ray.", self, "routers", "heartbeat_s", "lease_s", "health_s", "health_timeout_s")
        require_not_negative("ray.", self, "router_cpus", "upscale_s", "downscale_s")
        if self.lease_s < 2 * self.heartbeat_s:
            raise ConfigError(
                f"ray.lease_s {self.lease_s} must be at least two heartbeats of {self.heartbeat_s} s: one may be late",
                param="lease_s",
            )
        labels_of(self.router_node_labels)


def labels_of(text: str) -> dict[str, str]:
    """`key=value,key=value` as a mapping. Raises ConfigError naming the part that is not one."""
    labels: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.strip().partition("=")
        if not (key and equals and value):
            raise ConfigError(f"node labels '{text}': '{part}' is not key=value", param="node_labels")
        labels[key] = value
    return labels
