"""The output of a request in a manifest: `[token id, logprob, [[token id, logprob], ...]]` for each token."""

from collections.abc import Sequence
from typing import NamedTuple

from segue.errors import SnapshotManifestInvalid
from segue.state.snapshot.fields import JsonValue, as_array, as_integer, as_number, number_json


class OutputToken(NamedTuple):
    """One token with what was reported beside it: its logprob if one was, and alternatives as (token id, logprob)."""

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] = ()


def output_json(output: Sequence[OutputToken]) -> list[JsonValue]:
    return [
        [
            token.token_id,
            None if token.logprob is None else number_json(token.logprob),
            [[token_id, number_json(logprob)] for token_id, logprob in token.top],
        ]
        for token in output
    ]


def output_from_json(values: Sequence[object], where: str) -> tuple[OutputToken, ...]:
    """Raises SnapshotManifestInvalid naming the token."""
    return tuple(_token(value, f"{where}[{place}]") for place, value in enumerate(values))


def _token(value: object, where: str) -> OutputToken:
    token_id, logprob, top = _parts(value, where, 3)
    return OutputToken(
        as_integer(token_id, where),
        None if logprob is None else as_number(logprob, where),
        tuple(_alternative(one, where) for one in as_array(top, where)),
    )


def _alternative(value: object, where: str) -> tuple[int, float]:
    token_id, logprob = _parts(value, where, 2)
    return as_integer(token_id, where), as_number(logprob, where)


def _parts(value: object, where: str, count: int) -> list[object]:
    parts = as_array(value, where)
    if len(parts) != count:
        raise SnapshotManifestInvalid(f"{where} has {len(parts)} parts instead of {count}")
    return parts
