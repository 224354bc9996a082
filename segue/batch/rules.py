"""What a request must be to be served at all by a given model, and when it ends; knows nothing of load or pools."""

import numpy as np

from segue.batch.request import FinishReason, Request
from segue.batch.submission import GenerateSpec
from segue.errors import InvalidRequest
from segue.tokens import EmittedToken

DEADLINE_S_MAX = 31_536_000.0
"""A year. A wait of infinite length, or of no number at all, is more than a lock can be asked for."""


def require_servable(spec: GenerateSpec, vocab_size: int, stop_ids: frozenset[int]) -> None:
    """Raises InvalidRequest naming what is wrong. `stop_ids` are the model's own."""
    if not spec.prompt:
        raise InvalidRequest(f"request {spec.request_id} has an empty prompt", param="prompt")
    for tokens in (spec.prompt, spec.emitted):
        # A prompt is long, and this is the engine's thread.
        known = np.asarray(tokens)
        if bad := known[(known < 0) | (known >= vocab_size)].tolist():
            raise InvalidRequest(
                f"request {spec.request_id}: token id {bad[0]} is outside the vocabulary of {vocab_size}",
                param="prompt",
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
    _require_scorable(spec)
    if spec.moved is not None and (not spec.emitted or spec.score_from is not None):
        raise InvalidRequest(f"request {spec.request_id} can only have moved while its output was computed")
    if len(spec.emitted) >= max(spec.sampling.max_tokens, 1):
        raise InvalidRequest(
            f"request {spec.request_id}: {len(spec.emitted)} tokens are emitted already, "
            f"max_tokens is {spec.sampling.max_tokens}",
            param="max_tokens",
        )


def end_reason(request: Request, count: int, token: EmittedToken, stop_ids: frozenset[int]) -> FinishReason | None:
    """Why an output ends with `token` as its `count`-th, None when it goes on. `stop_ids` are the model's own."""
    sampling = request.sampling
    is_stop = (token.token_id in stop_ids and not sampling.ignore_eos) or token.token_id in sampling.stop_token_ids
    if count >= sampling.min_tokens and is_stop:
        return FinishReason.STOP
    return FinishReason.LENGTH if count >= sampling.max_tokens else None


def require_output(spec: GenerateSpec) -> None:
    """Raises InvalidRequest for a prompt that is scored: its state is not handed over."""
    if spec.score_from is not None:
        raise InvalidRequest(
            f"request {spec.request_id}: a prompt is scored by the worker that puts out its tokens, not by one that "
            "computes prompts for others",
            param="score_from",
        )


def _require_scorable(spec: GenerateSpec) -> None:
    if spec.score_from is None:
        if spec.sampling.max_tokens == 0:
            raise InvalidRequest(
                f"request {spec.request_id}: max_tokens is 0 and the prompt is not to be scored, nothing is asked for",
                param="max_tokens",
            )
        return
    if not 0 <= spec.score_from < len(spec.prompt) - 1:
        raise InvalidRequest(
            f"request {spec.request_id}: no token of a prompt of {len(spec.prompt)} is behind position "
            f"{spec.score_from}, there is none to score",
            param="score_from",
        )
    if spec.sampling.logprobs is None:
        raise InvalidRequest(
            f"request {spec.request_id}: a prompt is to be scored and logprobs are not asked for", param="logprobs"
        )
