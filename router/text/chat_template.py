"""A checkpoint's chat template: messages to one text, in Jinja's sandbox; knows nothing of tokens.

The names that templates may use are those that Hugging Face documents for them: `messages`, `add_generation_prompt`,
the special tokens, `raise_exception`, `strftime_now`, the `tojson` filter, loop controls and the `generation` block.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from segue.errors import CheckpointError, InvalidRequest


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, special_tokens: Mapping[str, object]) -> None:
        """`special_tokens`: `bos_token` and the like. Raises CheckpointError when the template is no valid Jinja."""
        self.source = source
        self._special_tokens = special_tokens
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError(f"line {error.lineno} of the chat template: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The text that asks for the assistant's next message.

        Raises InvalidRequest with the template's own words when it refuses the messages, or cannot cope with them.
        """
        try:
            return self._template.render(
                self._special_tokens, messages=messages, tools=None, documents=None, add_generation_prompt=True
            )
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what the assistant said, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration is an instance attribute)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
