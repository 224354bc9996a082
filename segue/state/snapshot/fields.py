"""JSON objects read strictly: every field is there once and of its type, no other is; knows nothing of their meaning.

Numbers stay what they are: integers of at most 64 bits, and floats that may be infinite or NaN, which JSON cannot say
and a string does.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segue.errors import SnapshotManifestInvalid

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
JsonObject: TypeAlias = Mapping[str, JsonValue]

_INTEGER_MAX = (1 << 63) - 1
_UNSAYABLE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def to_json(value: JsonValue) -> bytes:
    """Compact and in ASCII. Raises ValueError or TypeError for what is no JSON: that is our own mistake."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def from_json(raw: bytes, where: str) -> object:
    """Raises SnapshotManifestInvalid for anything but one JSON value without repeated keys."""
    try:
        parsed: object = json.loads(raw, object_pairs_hook=_without_repetition, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise SnapshotManifestInvalid(f"{where} is not valid JSON: {error}") from error
    return parsed


def number_json(value: float) -> JsonValue:
    """A float as JSON can say it."""
    return value if math.isfinite(value) else str(float(value))


class Fields:
    """The fields of one JSON object. Each is taken by name and type; `close` refuses what nobody took."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise SnapshotManifestInvalid(f"{where} is not an object")
        self.where = where
        self._left: dict[str, object] = dict(value)

    def take(self, name: str) -> object:
        """The field as it was parsed."""
        if name not in self._left:
            raise SnapshotManifestInvalid(f"{self.where} has no '{name}'")
        return self._left.pop(name)

    def integer(self, name: str, *, minimum: int = 0) -> int:
        return as_integer(self.take(name), self._named(name), minimum=minimum)

    def number(self, name: str) -> float:
        return as_number(self.take(name), self._named(name))

    def integer_or_none(self, name: str) -> int | None:
        value = self.take(name)
        return None if value is None else as_integer(value, self._named(name))

    def number_or_none(self, name: str) -> float | None:
        value = self.take(name)
        return None if value is None else as_number(value, self._named(name))

    def text(self, name: str, *, length_max: int) -> str:
        return as_text(self.take(name), self._named(name), length_max=length_max)

    def text_or_none(self, name: str, *, length_max: int) -> str | None:
        value = self.take(name)
        return None if value is None else as_text(value, self._named(name), length_max=length_max)

    def flag(self, name: str) -> bool:
        value = self.take(name)
        if not isinstance(value, bool):
            raise SnapshotManifestInvalid(f"{self._named(name)} is {value!r:.80}, neither true nor false")
        return value

    def array(self, name: str) -> list[object]:
        return as_array(self.take(name), self._named(name))

    def object(self, name: str) -> "dict[str, JsonValue]":
        value = self.take(name)
        if not isinstance(value, dict):
            raise SnapshotManifestInvalid(f"{self._named(name)} is not an object")
        return value

    def fields(self, name: str) -> "Fields":
        return Fields(self.take(name), self._named(name))

    def close(self) -> None:
        """Raises SnapshotManifestInvalid naming a field that this format does not have."""
        if self._left:
            raise SnapshotManifestInvalid(f"{self.where} has an unknown field {min(self._left)!r:.80}")

    def _named(self, name: str) -> str:
        return f"{self.where}.{name}"


def as_integer(value: object, where: str, *, minimum: int = 0) -> int:
    if type(value) is not int or not minimum <= value <= _INTEGER_MAX:
        raise SnapshotManifestInvalid(f"{where} is {value!r:.80}, not an integer from {minimum} on")
    return value


def as_token(value: object, where: str) -> int:
    token_id = as_integer(value, where)
    if token_id >= 1 << 32:
        raise SnapshotManifestInvalid(f"{where} is {token_id}, no token has more than 32 bits")
    return token_id


def as_number(value: object, where: str) -> float:
    if type(value) is int and abs(value) <= _INTEGER_MAX:
        return float(value)
    if type(value) is float:
        return value
    if isinstance(value, str) and value in _UNSAYABLE:
        return _UNSAYABLE[value]
    raise SnapshotManifestInvalid(f"{where} is {value!r:.80}, not a number")


def as_text(value: object, where: str, *, length_max: int) -> str:
    if not isinstance(value, str) or len(value) > length_max:
        raise SnapshotManifestInvalid(f"{where} is {value!r:.80}, not a text of at most {length_max} characters")
    return value


def as_array(value: object, where: str) -> list[object]:
    if not isinstance(value, list):
        raise SnapshotManifestInvalid(f"{where} is {value!r:.80}, not a list")
    return value


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
