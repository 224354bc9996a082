"""Sampling parameters as a JSON object, for manifests, and back; every field is there, and of its own type."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segue.batch.sampling import SamplingParams
from segue.errors import InvalidRequest, SnapshotManifestInvalid

SamplingValue: TypeAlias = "bool | int | float | Sequence[int] | Sequence[list[int | float]] | None"

_INTEGERS = ("seed", "choice", "top_k", "max_tokens", "min_tokens")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_FIELDS = frozenset({*_INTEGERS, *_NUMBERS, "logit_bias", "logprobs", "ignore_eos", "stop_token_ids"})
_TOKEN_LIMIT = 2**32


def sampling_to_json(params: SamplingParams) -> dict[str, SamplingValue]:
    """A mapping that any JSON writer takes, and that comes back as it was."""
    return {
        **{name: getattr(params, name) for name in (*_INTEGERS, *_NUMBERS)},
        "logit_bias": [[token, bias] for token, bias in params.logit_bias],
        "logprobs": params.logprobs,
        "ignore_eos": params.ignore_eos,
        "stop_token_ids": list(params.stop_token_ids),
    }


def sampling_from_json(fields: Mapping[str, object]) -> SamplingParams:
    """Raises SnapshotManifestInvalid naming a field that is missing, unknown, of another type or out of range."""
    if fields.keys() != _FIELDS:
        name = min(fields.keys() ^ _FIELDS)
        raise SnapshotManifestInvalid(f"sampling has {'no' if name in _FIELDS else 'an unknown field'} '{name:.80}'")
    ignore_eos, logprobs = fields["ignore_eos"], fields["logprobs"]
    if not isinstance(ignore_eos, bool):
        raise _mistyped("ignore_eos", ignore_eos)
    try:
        return SamplingParams(
            seed=_integer("seed", fields["seed"]),
            choice=_integer("choice", fields["choice"]),
            temperature=_number("temperature", fields["temperature"]),
            top_p=_number("top_p", fields["top_p"]),
            top_k=_integer("top_k", fields["top_k"]),
            min_p=_number("min_p", fields["min_p"]),
            repetition_penalty=_number("repetition_penalty", fields["repetition_penalty"]),
            presence_penalty=_number("presence_penalty", fields["presence_penalty"]),
            frequency_penalty=_number("frequency_penalty", fields["frequency_penalty"]),
            logit_bias=tuple(_bias(entry) for entry in _array("logit_bias", fields["logit_bias"])),
            logprobs=None if logprobs is None else _integer("logprobs", logprobs),
            max_tokens=_integer("max_tokens", fields["max_tokens"]),
            min_tokens=_integer("min_tokens", fields["min_tokens"]),
            ignore_eos=ignore_eos,
            stop_token_ids=tuple(_token("stop_token_ids", each) for each in _stop_tokens(fields)),
        )
    except InvalidRequest as error:
        raise SnapshotManifestInvalid(f"sampling: {error.message}") from error


def _stop_tokens(fields: Mapping[str, object]) -> Sequence[object]:
    return _array("stop_token_ids", fields["stop_token_ids"])


def _bias(entry: object) -> tuple[int, float]:
    pair = _array("logit_bias", entry)
    if len(pair) != 2:
        raise _mistyped("logit_bias", entry)
    return _token("logit_bias", pair[0]), _number("logit_bias", pair[1])


def _token(name: str, value: object) -> int:
    token_id = _integer(name, value)
    if not 0 <= token_id < _TOKEN_LIMIT:
        raise _mistyped(name, value)
    return token_id


def _integer(name: str, value: object) -> int:
    if type(value) is not int:
        raise _mistyped(name, value)
    return value


def _number(name: str, value: object) -> float:
    # Any integer above 1,000 is out of the range of every one of these, and not all can be written as a float.
    if type(value) is int and abs(value) <= 1000:
        return float(value)
    if type(value) is not float:
        raise _mistyped(name, value)
    return value


def _array(name: str, value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise _mistyped(name, value)
    return value


def _mistyped(name: str, value: object) -> SnapshotManifestInvalid:
    return SnapshotManifestInvalid(f"sampling.{name} is {value!r:.80}")
