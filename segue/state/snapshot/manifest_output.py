"""The output of a request in a manifest: `[token id, logprob, [[token id, logprob], ...]]` for each token."""

from collections.abc import Sequence

from segue.errors import SnapshotManifestInvalid
from segue.state.snapshot.fields import JsonValue, as_array, as_number, as_token, number_json
from segue.tokens import EmittedToken


def output_json(output: Sequence[EmittedToken]) -> list[JsonValue]:
    return [
        [
            token.token_id,
            None if token.logprob is None else number_json(token.logprob),
            [[token_id, number_json(logprob)] for token_id, logprob in token.top],
        ]
        for token in output
    ]


def output_from_json(values: Sequence[object], where: str) -> tuple[EmittedToken, ...]:
    """Raises SnapshotManifestInvalid naming the token."""
    return tuple(_token(value, f"{where}[{place}]") for place, value in enumerate(values))


def _token(value: object, where: str) -> EmittedToken:
    token_id, logprob, top = _parts(value, where, 3)
    return EmittedToken(
        as_token(token_id, where),
        None if logprob is None else as_number(logprob, where),
        tuple(_alternative(one, where) for one in as_array(top, where)),
    )


def _alternative(value: object, where: str) -> tuple[int, float]:
    token_id, logprob = _parts(value, where, 2)
    return as_token(token_id, where), as_number(logprob, where)


def _parts(value: object, where: str, count: int) -> list[object]:
    parts = as_array(value, where)
    if len(parts) != count:
        raise SnapshotManifestInvalid(f"{where} has {len(parts)} parts instead of {count}")
    return parts
