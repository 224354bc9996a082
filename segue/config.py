"""Configuration: TOML tables into frozen dataclasses, unknown keys refused; reads no environment.

Every part owns its small dataclass (`EngineConfig` here, `WorkerConfig` and `RouterConfig` beside their services).
"""

import dataclasses
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from segue.batch.role import Role
from segue.cache.shape import Strategy
from segue.errors import ConfigError
from segue.state.spec import KV_DTYPES, REPLAY_LENGTHS


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """What one engine serves and with how much memory.

    `state_bytes` is the budget of the arena (all pages and slots). `page_tokens` is P. `step_tokens` bounds the tokens
    of one step, `chunk_tokens` those of one request's prefill chunk in it. `max_waiting` bounds the queue. `role` is
    what the engine does: prefill, decode, or both. A prefill worker asks each decode worker for room for at most
    `asks_ahead` queued prompts at a time. With `prefix_cache` what requests computed is kept for later ones of the
    same beginning; `checkpoint_strategy` is how the recurrent state for that comes about, and decoding leaves a
    checkpoint every `track_interval` tokens (0: 256, rounded up to the checkpoint grid). Without `retain_window` a
    running request gives up the window below its newest checkpoint. `kv_dtype` is what keys and values are stored in:
    empty for `dtype`, or `fp8`. With a `replay_length` L above 1 a decoding request's matrix states are written every L
    steps only (ReplaySSM). `tp` ranks, processes on one machine, share the model (tensor parallelism); `state_bytes` is
    that of each. `device` is `cpu`, `cuda` (rank r takes the device `cuda:r`), or a list of the ranks' devices. A rank
    that takes no part for `rank_limit_s` is lost, and the worker with it.
    """

    model: Path
    name: str = ""
    role: str = Role.BOTH.value
    device: str = "cpu"
    dtype: str = "float32"
    kv_dtype: str = ""
    deterministic: bool = False
    threads: int = 0
    page_tokens: int = 64
    state_bytes: int = 512 << 20
    max_running: int = 32
    max_waiting: int = 1024
    max_len: int = 0
    step_tokens: int = 1024
    chunk_tokens: int = 512
    asks_ahead: int = 4
    prefix_cache: bool = True
    checkpoint_strategy: str = Strategy.EXTRA_BUFFER.value
    track_interval: int = 0
    retain_window: bool = True
    replay_length: int = 1
    tp: int = 1
    rank_limit_s: float = 10.0

    def __post_init__(self) -> None:
        if self.role not in set(Role):
            raise ConfigError(f"engine.role is '{self.role}', it must be one of {', '.join(Role)}", param="role")
        if self.kv_dtype and self.kv_dtype not in KV_DTYPES:
            raise ConfigError(
                f"engine.kv_dtype is '{self.kv_dtype}', it must be one of {', '.join(KV_DTYPES)}, or empty for the "
                "type that is computed in",
                param="kv_dtype",
            )
        require_at_least_one("engine.", self, *_COUNTS)
        if self.checkpoint_strategy not in set(Strategy):
            raise ConfigError(
                f"engine.checkpoint_strategy is '{self.checkpoint_strategy}', it must be one of {', '.join(Strategy)}",
                param="checkpoint_strategy",
            )
        require_not_negative("engine.", self, "max_len", "threads", "track_interval")
        _require("engine.", self, ("rank_limit_s",), "be above 0 and at most 3600", lambda value: 0 < value <= 3600)
        if self.replay_length not in REPLAY_LENGTHS:
            raise ConfigError(
                f"engine.replay_length is {self.replay_length}, it must be one of {str(REPLAY_LENGTHS)[1:-1]}",
                param="replay_length",
            )
        if self.replay_length > 1 and self.deterministic:
            raise ConfigError(
                f"engine.replay_length {self.replay_length} and engine.deterministic exclude each other: when a matrix "
                "state was written last changes a token's last bits; set replay_length to 1 or deterministic to false",
                param="replay_length",
            )
        if self.step_tokens < self.max_running:
            raise ConfigError(
                f"engine.step_tokens {self.step_tokens} is below max_running {self.max_running}: "
                "every running request needs a token a step",
                param="step_tokens",
            )


_COUNTS = (
    "page_tokens",
    "state_bytes",
    "max_running",
    "max_waiting",
    "step_tokens",
    "chunk_tokens",
    "asks_ahead",
    "tp",
)


def read_secret(path: Path, setting: str, param: str) -> str:
    """What a file holds, without the white space around it. Raises ConfigError that names `setting`."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {setting} {path}: {error}", param=param) from error


def require_at_least_one(table: str, config: object, *names: str) -> None:
    """Raises ConfigError naming the first of these settings that is below 1; `table` comes before its name."""
    _require(table, config, names, "be at least 1", lambda value: value >= 1)


def require_above_zero(table: str, config: object, *names: str) -> None:
    """Raises ConfigError naming the first of these settings that is not above 0."""
    _require(table, config, names, "be above 0", lambda value: value > 0)


def require_not_negative(table: str, config: object, *names: str) -> None:
    """Raises ConfigError naming the first of these settings that is negative."""
    _require(table, config, names, "not be negative", lambda value: value >= 0)


def _require(table: str, config: object, names: Sequence[str], must: str, holds: Callable[[float], bool]) -> None:
    # Asked for what must hold, not for what must not: NaN, which TOML can say, holds nothing.
    for name in names:
        value = getattr(config, name)
        if not holds(value):
            raise ConfigError(f"{table}{name} is {value}, it must {must}", param=name)


def read_toml(path: Path) -> dict[str, object]:
    """The parsed file. Raises ConfigError naming the file and the place."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read config file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}") from error


T = typing.TypeVar("T")


def section(cls: type[T], table: Mapping[str, object], where: str) -> T:
    """Builds the dataclass `cls` from one table.

    Raises ConfigError naming `where` and the key that is unknown or mistyped.
    """
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for key in table:
        if key not in fields:
            raise ConfigError(f"{where}.{key} is not a setting; known are {', '.join(sorted(fields))}", param=key)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in table:
            raise ConfigError(f"{where}.{name} is missing", param=name)
    return cls(**{key: _convert(hints[key], value, f"{where}.{key}") for key, value in table.items()})


def sections(table: Mapping[str, object], parts: Mapping[str, type]) -> dict[str, Mapping[str, object]]:
    """Splits a file's top level into the tables of `parts` (absent ones are empty). Refuses unknown tables by name."""
    found: dict[str, Mapping[str, object]] = {name: {} for name in parts}
    for name, value in table.items():
        if name not in parts:
            raise ConfigError(f"[{name}] is not a known table; known are {', '.join(sorted(parts))}", param=name)
        if not isinstance(value, dict):
            raise ConfigError(f"{name} must be a table", param=name)
        found[name] = value
    return found


def _convert(hint: object, value: object, where: str) -> object:
    """`value` as the annotated type; strings from flags and TOML values alike."""
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        return None if value is None else _convert(members[0], value, where)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} must be a list")
        return tuple(_convert(typing.get_args(hint)[0], item, where) for item in value)
    try:
        if hint is bool:
            return _to_bool(value)
        if hint is int and isinstance(value, int | str) and not isinstance(value, bool):
            return int(value)
        if hint is float and isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
        if hint is str and isinstance(value, str):
            return value
        if hint is Path and isinstance(value, str | Path):
            return Path(value)
    except ValueError as error:
        raise ConfigError(f"{where} is {value!r}: {error}") from error
    raise ConfigError(f"{where} is {value!r}, expected {getattr(hint, '__name__', hint)}")


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError("expected true or false")
