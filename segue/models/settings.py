"""Typed reading of a parsed config.json: every field that is missing or of another type is named in a
CheckpointError.
"""

from collections.abc import Mapping

from segue.errors import CheckpointError
from segue.layers.rope import Llama3Scaling, RopeConfig


class Settings:
    """A mapping from JSON, read field by field. A field that is null counts as absent."""

    def __init__(self, fields: Mapping[str, object], where: str = "config.json") -> None:
        self._fields = fields
        self._where = where

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(name, value, "an integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def texts(self, name: str, default: list[str]) -> list[str]:
        value = self._get(name, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, value, "a list of strings")
        return value

    def section(self, name: str) -> "Settings":
        value = self._get(name, None)
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return Settings(value, f"{self._where} {name}")

    def section_names(self) -> list[str]:
        """The fields that are objects."""
        return [name for name, value in self._fields.items() if isinstance(value, Mapping)]

    def require(self, name: str, value: object, supported: object) -> None:
        """Raises CheckpointError unless a setting has the one value that is supported."""
        if value != supported:
            raise CheckpointError(f"{self._where}: {name} {value!r} is not supported, only {supported!r}")

    def _get(self, name: str, default: object) -> object:
        value = self._fields.get(name)
        if value is None:
            value = default
        if value is None:
            raise CheckpointError(f"{self._where} has no '{name}'")
        return value

    def _wrong(self, name: str, value: object, wanted: str) -> CheckpointError:
        return CheckpointError(f"{self._where}: '{name}' is {value!r}, it must be {wanted}")


def read_rope(settings: Settings) -> RopeConfig:
    """The rotary embedding, as newer (`rope_parameters`) or older (`rope_theta`, `rope_scaling`) configs spell it.

    Where a config says a thing twice, what counts is what counts for transformers. Raises CheckpointError naming a
    type that is not supported.
    """
    name = next((name for name in ("rope_scaling", "rope_parameters") if settings.has(name)), None)
    scaling = Settings({}) if name is None else settings.section(name)
    if kinds := scaling.section_names():
        raise CheckpointError(f"{name} by layer type ({', '.join(kinds)}) is not supported, only one for all layers")
    theta = scaling.number("rope_theta", settings.number("rope_theta", 10_000.0))
    kind = scaling.text("rope_type", scaling.text("type", "default"))
    if scaling.number("partial_rotary_factor", settings.number("partial_rotary_factor", 1.0)) != 1.0:
        raise CheckpointError("rotary embedding of a part of each head (partial_rotary_factor) is not supported")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling=scaling.number("factor"))
    if kind == "llama3":
        return RopeConfig(
            theta=theta,
            scaling=Llama3Scaling(
                factor=scaling.number("factor"),
                low_freq_factor=scaling.number("low_freq_factor"),
                high_freq_factor=scaling.number("high_freq_factor"),
                original_max_position=scaling.integer(
                    "original_max_position_embeddings", settings.integer("max_position_embeddings", 0)
                ),
            ),
        )
    raise CheckpointError(f"rope type '{kind}' is not supported (default, linear and llama3 are)")
