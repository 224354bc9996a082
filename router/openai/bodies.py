"""OpenAI request bodies as they may be sent, and those fields that are refused by name; nothing is normalised here."""

from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from segue.batch.sampling import MAX_LOGIT_BIAS
from segue.errors import InvalidRequest

# Fields that would change the answer and that are not served, with the values that ask for nothing. An endpoint that
# serves one of them has it in its body.
_REFUSED: dict[str, tuple[object, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "function_call": (None, "none"),
    "response_format": (None, {"type": "text"}),
    "audio": (None,),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "web_search_options": (None,),
    "echo": (None, False),
    "add_generation_prompt": (None, True),
    "suffix": (None, ""),
}
# Fields of OpenAI's own that do not change what a model like these answers. All other unknown ones are a 400, as there.
_IGNORED = frozenset(
    {
        "metadata",
        "moderation",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)


def _not_too_many(value: object) -> object:
    if isinstance(value, dict) and len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"{len(value)} entries, at most {MAX_LOGIT_BIAS} are allowed")
    return value


# The first mistake is all that is told, and a body may hold a million: explaining each would stop every stream.
_First = Field(fail_fast=True)
_TokenIds = Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], _First]
_Texts = Annotated[list[str], _First]
_Messages = Annotated[list[dict[str, Any]], _First]
_Biases = Annotated[dict[str, float] | None, BeforeValidator(_not_too_many)]


class StreamOptions(BaseModel):
    """What a stream carries beside text."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class CommonBody(BaseModel):
    """Fields that chat and completions share."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = Field(None, ge=1)
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: _Biases = None
    stop: str | _Texts | None = None
    stop_token_ids: _TokenIds | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(None, max_length=256)


class ChatBody(CommonBody):
    """POST /v1/chat/completions."""

    # What a message may hold is the chat template's affair: the tokenizer refuses what it cannot write.
    messages: _Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionBody(CommonBody):
    """POST /v1/completions."""

    prompt: str | _TokenIds | _Texts | Annotated[list[_TokenIds], _First]
    logprobs: int | None = None
    logprobs_from: int | None = Field(None, ge=0)
    echo: bool | None = None


class TokenizeBody(BaseModel):
    """POST /tokenize: a text, or a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    prompt: str | None = None
    messages: _Messages | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize."""

    model_config = ConfigDict(extra="forbid", strict=True)
    model: str | None = None
    tokens: _TokenIds


Body = TypeVar("Body", bound=BaseModel)


def parse_body(cls: type[Body], raw: bytes) -> Body:
    """The body that `raw` holds. Raises InvalidRequest naming the field that is wrong, unknown or not served."""
    try:
        fields = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise InvalidRequest("the body must be a JSON object")
    kept = {name: value for name, value in fields.items() if not _leave_out(cls, name, value)}
    try:
        return cls.model_validate(kept)
    except ValidationError as error:
        raise _first_problem(error) from error


def _leave_out(cls: type[BaseModel], name: str, value: Any) -> bool:  # noqa: ANN401  any JSON value
    if name in cls.model_fields or any(field.alias == name for field in cls.model_fields.values()):
        return False
    if name in _REFUSED:
        if value not in _REFUSED[name]:
            raise InvalidRequest(f"'{name}' is not supported here", param=name)
        return True
    if name in _IGNORED:
        return True
    raise InvalidRequest(f"'{name}' is not a known field", param=name)


def _first_problem(error: ValidationError) -> InvalidRequest:
    # Where several types are possible each complains; the one that got furthest into the value says most.
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    problem = max(problems, key=lambda each: len(each["loc"]))
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return InvalidRequest(f"'{place}' is not a known field", param=place)
    return InvalidRequest(f"'{place}': {problem['msg']}", param=str(problem["loc"][0]) if problem["loc"] else None)
