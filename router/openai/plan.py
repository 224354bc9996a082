"""From a validated body to what is asked of the workers: prompts as tokens, one set of parameters per choice."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from router.fleet import ServedModel
from router.openai.bodies import ChatBody, CommonBody, CompletionBody
from router.text.stop_strings import StopAutomaton
from segue.batch.sampling import SEED_LIMIT, SamplingParams
from segue.errors import ContextTooLong, InvalidRequest

T = TypeVar("T")

STOPS_MAX = 16
STOP_CHARS_MAX = 1024
STOP_TOKENS_MAX = 256
# Seeds drawn here stay exact in every JSON reader, whose numbers may be doubles.
_DRAWN_SEED_BITS = 53


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """How tokens become text. `stops` None: at no string. `echo`: the prompt's come first."""

    echo: bool
    stops: StopAutomaton | None
    include_stop: bool
    skip_special_tokens: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChoice:
    """One choice: its index in the response, and which prompt it answers.

    With `score_from` the prompt tokens behind that position are scored; there is at least one.
    """

    index: int
    prompt_number: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    score_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything one request asks for. Choices of one prompt stand together, in order."""

    model: ServedModel
    choices: tuple[PlannedChoice, ...]
    text: TextOptions
    seed: int
    stream: bool
    include_usage: bool
    priority: int
    cache_salt: str


def plan_chat(body: ChatBody, model: ServedModel, prompt: Sequence[int], choices_max: int) -> Plan:
    """Raises InvalidRequest or ContextTooLong naming the field."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", param="top_logprobs")
    if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
        raise InvalidRequest("max_tokens and max_completion_tokens differ; send one", param="max_completion_tokens")
    max_tokens = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    _require_output(max_tokens)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _plan(body, model, [prompt], max_tokens, logprobs, choices_max)


def plan_completion(
    body: CompletionBody, model: ServedModel, prompts: Sequence[Sequence[int]], choices_max: int
) -> Plan:
    """Raises InvalidRequest or ContextTooLong naming the field."""
    # The default is OpenAI's.
    max_tokens = 16 if body.max_tokens is None else body.max_tokens
    if body.logprobs_from is not None and not (body.echo and body.logprobs is not None):
        raise InvalidRequest("logprobs_from needs echo and logprobs", param="logprobs_from")
    if not body.echo:
        _require_output(max_tokens)
    plan = _plan(body, model, prompts, max_tokens, body.logprobs, choices_max)
    return _echoing(plan, body) if body.echo else plan


def _plan(
    body: CommonBody,
    model: ServedModel,
    prompts: Sequence[Sequence[int]],
    max_tokens: int | None,
    logprobs: int | None,
    choices_max: int,
) -> Plan:
    count = body.n or 1
    if body.best_of not in (None, count):
        raise InvalidRequest(f"best_of {body.best_of} is not supported beside n {count}", param="best_of")
    total = count * len(prompts)
    if total > choices_max:
        raise InvalidRequest(
            f"{len(prompts)} prompts with n {count} are {total} choices, at most {choices_max} are allowed", param="n"
        )
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options needs stream to be true", param="stream_options")
    text = _text_options(body)
    seed = secrets.randbits(_DRAWN_SEED_BITS) if body.seed is None else _seed(body.seed)
    choices: list[PlannedChoice] = []
    for number, prompt in enumerate(prompts):
        budget = _budget(prompt, max_tokens, model)
        for k in range(count):
            sampling = _sampling(body, seed, k, budget, logprobs, model)
            index = number * count + k
            choices.append(PlannedChoice(index=index, prompt_number=number, prompt=tuple(prompt), sampling=sampling))
    return Plan(
        model=model,
        choices=tuple(choices),
        text=text,
        seed=seed,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def _echoing(plan: Plan, body: CompletionBody) -> Plan:
    """With logprobs the prompts are scored, as far as they have tokens to score."""
    first = body.logprobs_from or 0
    choices = []
    for choice in plan.choices:
        count = len(choice.prompt)
        if first >= count:
            raise InvalidRequest(f"logprobs_from is {first}, a prompt has {count} tokens", param="logprobs_from")
        scored = body.logprobs is not None and first < count - 1
        choices.append(replace(choice, score_from=first if scored else None))
    return replace(plan, choices=tuple(choices), text=replace(plan.text, echo=True))


def _require_output(max_tokens: int | None) -> None:
    if max_tokens == 0:
        raise InvalidRequest("max_tokens is 0; only a completion with echo answers without output", param="max_tokens")


def _budget(prompt: Sequence[int], max_tokens: int | None, model: ServedModel) -> int:
    """How many tokens may be put out after `prompt`; a prompt that leaves less than was asked for is refused."""
    if not prompt:
        raise InvalidRequest("the prompt is empty", param="prompt")
    unknown = next((token for token in prompt if token >= model.vocab_size), None)
    if unknown is not None:
        raise InvalidRequest(f"token {unknown} is outside the vocabulary of {model.vocab_size}", param="prompt")
    if len(prompt) + (1 if max_tokens is None else max_tokens) > model.max_len:
        wanted = "at least 1 output token" if max_tokens is None else f"max_tokens {max_tokens}"
        raise ContextTooLong(
            f"the prompt has {len(prompt)} tokens; with {wanted} that exceeds the context length of {model.max_len}",
            param="messages" if max_tokens is None else "max_tokens",
        )
    return model.max_len - len(prompt) if max_tokens is None else max_tokens


def _seed(asked: int) -> int:
    """OpenAI allows negative seeds; they are taken modulo the range that workers know."""
    return asked % SEED_LIMIT


def _text_options(body: CommonBody) -> TextOptions:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > STOPS_MAX:
        raise InvalidRequest(f"stop has {len(stops)} strings, at most {STOPS_MAX} are allowed", param="stop")
    for stop in stops:
        if not 0 < len(stop) <= STOP_CHARS_MAX:
            raise InvalidRequest(
                f"a stop string has {len(stop)} characters, 1 to {STOP_CHARS_MAX} are allowed", param="stop"
            )
    return TextOptions(
        echo=False,
        stops=StopAutomaton(stops) if stops else None,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
    )


def _sampling(
    body: CommonBody, seed: int, choice: int, max_tokens: int, logprobs: int | None, model: ServedModel
) -> SamplingParams:
    stop_token_ids = tuple(body.stop_token_ids or ())
    if len(stop_token_ids) > STOP_TOKENS_MAX:
        raise InvalidRequest(
            f"stop_token_ids has {len(stop_token_ids)} entries, at most {STOP_TOKENS_MAX} are allowed",
            param="stop_token_ids",
        )
    for token in stop_token_ids:
        if token >= model.vocab_size:
            raise InvalidRequest(
                f"token {token} is outside the vocabulary of {model.vocab_size}", param="stop_token_ids"
            )
    return SamplingParams(
        seed=seed,
        choice=choice,
        temperature=_given(body.temperature, model.defaults.temperature),
        top_p=_given(body.top_p, model.defaults.top_p),
        # -1 is how several clients say off.
        top_k=0 if body.top_k == -1 else _given(body.top_k, model.defaults.top_k),
        min_p=_given(body.min_p, model.defaults.min_p),
        repetition_penalty=_given(body.repetition_penalty, model.defaults.repetition_penalty),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        logit_bias=_logit_bias(body.logit_bias or {}, model.vocab_size),
        logprobs=logprobs,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=stop_token_ids,
    )


def _given(value: T | None, default: T) -> T:
    return default if value is None else value


def _logit_bias(asked: dict[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases: list[tuple[int, float]] = []
    for key, bias in asked.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise InvalidRequest(
                f"logit_bias names token '{key[:32]}', the vocabulary has ids 0 to {vocab_size - 1}", param="logit_bias"
            )
        biases.append((int(key), bias))
    return tuple(biases)
