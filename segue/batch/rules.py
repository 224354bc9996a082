"""What a request must be to be served at all by a given model; knows nothing of load or pools."""

from segue.batch.submission import GenerateSpec
from segue.errors import InvalidRequest

DEADLINE_S_MAX = 31_536_000.0
"""A year. A wait of infinite length, or of no number at all, is more than a lock can be asked for."""


def require_servable(spec: GenerateSpec, vocab_size: int, stop_ids: frozenset[int]) -> None:
    """Raises InvalidRequest naming what is wrong. `stop_ids` are the model's own."""
    if not spec.prompt:
        raise InvalidRequest(f"request {spec.request_id} has an empty prompt", param="prompt")
    if bad := next((token for token in (*spec.prompt, *spec.emitted) if not 0 <= token < vocab_size), None):
        raise InvalidRequest(
            f"request {spec.request_id}: token id {bad} is outside the vocabulary of {vocab_size}", param="prompt"
        )
    for param, tokens in (
        ("logit_bias", [token for token, _ in spec.sampling.logit_bias]),
        ("stop_token_ids", spec.sampling.stop_token_ids),
    ):
        if bad := next((token for token in tokens if not 0 <= token < vocab_size), None):
            raise InvalidRequest(f"{param} names token id {bad}, the vocabulary has {vocab_size}", param=param)
    forbidden = {*spec.sampling.stop_token_ids, *(() if spec.sampling.ignore_eos else stop_ids)}
    if spec.sampling.min_tokens and len(forbidden) == vocab_size:
        raise InvalidRequest("stop_token_ids with min_tokens leaves no token to choose", param="stop_token_ids")
    if spec.deadline_s is not None and not abs(spec.deadline_s) <= DEADLINE_S_MAX:
        raise InvalidRequest(
            f"request {spec.request_id}: deadline_s is {spec.deadline_s}, at most {DEADLINE_S_MAX} is served",
            param="deadline_s",
        )
    if len(spec.emitted) >= spec.sampling.max_tokens:
        raise InvalidRequest(
            f"request {spec.request_id}: {len(spec.emitted)} tokens are emitted already, "
            f"max_tokens is {spec.sampling.max_tokens}",
            param="max_tokens",
        )
