"""How a client wants tokens chosen: validated values only; knows nothing of logits."""

import math
from dataclasses import dataclass, field

from segue.errors import InvalidRequest

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024
SEED_LIMIT = 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """What a model's makers suggest (generation_config.json) for requests that do not say. Without them: OpenAI's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Normalised sampling parameters of one choice.

    `seed` is always set (the router draws one when the client gives none); choice k has its own noise by `choice`.
    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1 and `min_p` 0 mean off. `logprobs` None means none wanted,
    otherwise the number of alternatives beside the chosen token. `stop_token_ids` end the output and are kept in it.
    `max_tokens` 0 is for prompts that are scored only.
    """

    seed: int
    choice: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("top_k", self.top_k, 0, 2**31 - 1)
        # Not just above 0: a logit over a denormal number is infinite, and leaves nothing to compare.
        _within("repetition_penalty", self.repetition_penalty, 0.01, 10.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("seed", self.seed, 0, SEED_LIMIT - 1)
        _within("choice", self.choice, 0, 2**16 - 1)
        _within("max_tokens", self.max_tokens, 0, 2**31 - 1)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.logprobs is not None:
            _within("logprobs", self.logprobs, 0, MAX_TOP_LOGPROBS)
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidRequest(
                f"logit_bias has {len(self.logit_bias)} entries, at most {MAX_LOGIT_BIAS} are allowed",
                param="logit_bias",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise InvalidRequest(
                f"stop_token_ids has {len(self.stop_token_ids)} entries, at most {MAX_STOP_TOKEN_IDS} are allowed",
                param="stop_token_ids",
            )
        for _, bias in self.logit_bias:
            _within("logit_bias", bias, -100.0, 100.0)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _within(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if not math.isfinite(value) or value > high or value < low or (open_low and value == low):
        raise InvalidRequest(
            f"{name} is {value}, it must be {'above' if open_low else 'at least'} {low} and at most {high}", param=name
        )
