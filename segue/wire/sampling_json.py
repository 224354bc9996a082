"""Sampling parameters as a JSON object, for manifests, and back; every field is there, and of its own type."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segue.batch.sampling import SamplingParams
from segue.errors import InvalidRequest, SnapshotManifestInvalid
from segue.state.snapshot.fields import Fields, as_array, as_number, as_token

SamplingValue: TypeAlias = "bool | int | float | Sequence[int] | Sequence[list[int | float]] | None"

_INTEGERS = ("seed", "choice", "top_k", "max_tokens", "min_tokens")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def sampling_to_json(params: SamplingParams) -> dict[str, SamplingValue]:
    """A mapping that any JSON writer takes, and that comes back as it was."""
    return {
        **{name: getattr(params, name) for name in (*_INTEGERS, *_NUMBERS)},
        "logit_bias": [[token, bias] for token, bias in params.logit_bias],
        "logprobs": params.logprobs,
        "ignore_eos": params.ignore_eos,
        "stop_token_ids": list(params.stop_token_ids),
    }


def sampling_from_json(value: Mapping[str, object]) -> SamplingParams:
    """Raises SnapshotManifestInvalid naming a field that is missing, unknown, of another type or out of range."""
    fields = Fields(value, "sampling")
    try:
        params = SamplingParams(
            seed=fields.integer("seed"),
            choice=fields.integer("choice"),
            temperature=fields.number("temperature"),
            top_p=fields.number("top_p"),
            top_k=fields.integer("top_k"),
            min_p=fields.number("min_p"),
            repetition_penalty=fields.number("repetition_penalty"),
            presence_penalty=fields.number("presence_penalty"),
            frequency_penalty=fields.number("frequency_penalty"),
            logit_bias=tuple(_bias(entry, "sampling.logit_bias") for entry in fields.array("logit_bias")),
            logprobs=fields.integer_or_none("logprobs"),
            max_tokens=fields.integer("max_tokens"),
            min_tokens=fields.integer("min_tokens"),
            ignore_eos=fields.flag("ignore_eos"),
            stop_token_ids=tuple(as_token(each, "sampling.stop_token_ids") for each in fields.array("stop_token_ids")),
        )
    except InvalidRequest as error:
        raise SnapshotManifestInvalid(f"sampling: {error.message}") from error
    fields.close()
    return params


def _bias(entry: object, where: str) -> tuple[int, float]:
    pair = as_array(entry, where)
    if len(pair) != 2:
        raise SnapshotManifestInvalid(f"{where} has an entry of {len(pair)} parts, not a token and its bias")
    return as_token(pair[0], where), as_number(pair[1], where)
