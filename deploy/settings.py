"""All settings of a deployment: a TOML file, then `--set section.key=value`; each part keeps its own dataclass."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import segue.zoo
from decode_service.retraction.config import RetractionConfig
from deploy.ray_config import RayConfig, RoleConfig
from kv_transfer.hosting.config import TransferConfig, WorkerConfig
from router.config import RouterConfig
from segue.batch.role import Role
from segue.config import EngineConfig, read_toml, require_above_zero, section, sections
from segue.errors import ConfigError
from segue.state.snapshot.config import SnapshotConfig
from segue.wire.channel import TlsConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How `segue serve` begins and ends, and, without Ray, keeps its processes.

    `drain_s` is what requests get to finish when serve is told to end. A process that lived for less than
    `quick_death_s` died quickly; after `quick_deaths_max` of those in a row serve gives up. Each is asked for a sign of
    life every `health_s`; one that gives none for `health_timeout_s` (a step of the engine may lie between) is killed.
    """

    drain_s: float = 5.0
    start_s: float = 600.0
    quick_death_s: float = 10.0
    quick_deaths_max: int = 5
    backoff_s: float = 0.25
    backoff_s_max: float = 8.0
    health_s: float = 1.0
    health_timeout_s: float = 90.0

    def __post_init__(self) -> None:
        require_above_zero("serve.", self, "start_s", "quick_deaths_max", "backoff_s", "health_s", "health_timeout_s")


@dataclass(frozen=True, slots=True)
class Settings:
    """One value per part. `both`, `prefill` and `decode` as they were given; `replicas` says what comes of them."""

    serve: ServeConfig
    engine: EngineConfig
    worker: WorkerConfig
    transfer: TransferConfig
    retraction: RetractionConfig
    snapshot: SnapshotConfig
    tls: TlsConfig
    router: RouterConfig
    ray: RayConfig
    both: RoleConfig
    prefill: RoleConfig
    decode: RoleConfig

    def __post_init__(self) -> None:
        for some, other in ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL)):
            count = self._given(some).replicas
            if count and not self._given(other).replicas:
                raise ConfigError(
                    f"{some}.replicas is {count} and {other}.replicas is 0: neither serves without the other; "
                    f"set both (--prefill 1 --decode 1), or have workers that do everything (--both 1)",
                    param=f"{other}.replicas",
                )

    def replicas(self, role: Role) -> RoleConfig:
        """The replicas of workers in one role. When no role was given any, prefill and decode have one each."""
        given = self._given(role)
        if role is not Role.BOTH and not any(self._given(one).replicas for one in Role):
            return replace(given, replicas=1)
        return given

    def engine_of(self, role: Role) -> EngineConfig:
        """The engine of a worker in one role."""
        return replace(self.engine, role=role.value, tp=self._given(role).tp or self.engine.tp)

    @property
    def roles(self) -> tuple[Role, ...]:
        """The roles that have replicas."""
        return tuple(role for role in Role if self.replicas(role).replicas)

    def _given(self, role: Role) -> RoleConfig:
        return {Role.BOTH: self.both, Role.PREFILL: self.prefill, Role.DECODE: self.decode}[role]


_PARTS: dict[str, type] = {
    "serve": ServeConfig,
    "engine": EngineConfig,
    "worker": WorkerConfig,
    "transfer": TransferConfig,
    "retraction": RetractionConfig,
    "snapshot": SnapshotConfig,
    "tls": TlsConfig,
    "router": RouterConfig,
    "ray": RayConfig,
    "both": RoleConfig,
    "prefill": RoleConfig,
    "decode": RoleConfig,
}


BUNDLED_NAME = "segue-zoo"
"""What clients call the bundled model."""


def bundled_model() -> Path:
    """The model that comes with the package."""
    return Path(segue.zoo.__path__[0]) / "model"


def load_settings(file: Path | None, assignments: Sequence[str]) -> Settings:
    """Reads the file, if there is one, and applies `section.key=value` assignments in order.

    Raises ConfigError naming what is unknown, missing or out of range.
    """
    tables = {name: dict(table) for name, table in sections(read_toml(file) if file else {}, _PARTS).items()}
    for assignment in assignments:
        name, key, value = _assignment(assignment)
        tables[name][key] = value
    engine = tables["engine"]
    if "model" not in engine:
        engine["model"] = str(bundled_model())
        engine["name"] = engine.get("name") or BUNDLED_NAME
    return Settings(
        section(ServeConfig, tables["serve"], "serve"),
        section(EngineConfig, tables["engine"], "engine"),
        section(WorkerConfig, tables["worker"], "worker"),
        section(TransferConfig, tables["transfer"], "transfer"),
        section(RetractionConfig, tables["retraction"], "retraction"),
        section(SnapshotConfig, tables["snapshot"], "snapshot"),
        section(TlsConfig, tables["tls"], "tls"),
        section(RouterConfig, tables["router"], "router"),
        section(RayConfig, tables["ray"], "ray"),
        section(RoleConfig, tables["both"], "both"),
        section(RoleConfig, tables["prefill"], "prefill"),
        section(RoleConfig, tables["decode"], "decode"),
    )


def _assignment(text: str) -> tuple[str, str, str]:
    target, equals, value = text.partition("=")
    name, dot, key = target.partition(".")
    if not (equals and dot and key):
        raise ConfigError(f"--set {text}: expected section.key=value, for example engine.max_running=16")
    if name not in _PARTS:
        raise ConfigError(f"--set {text}: there is no section '{name}'; known are {', '.join(sorted(_PARTS))}")
    return name, key, value
