"""Chat templates: the names they may use, the sandbox they run in, and how their refusals reach the client."""

import pytest
from transformers import AutoTokenizer

from router.text.chat_template import ChatTemplate
from segue.errors import CheckpointError, InvalidRequest
from tests.router.text.tokenizers_for_tests import BUNDLED

MESSAGES = [{"role": "user", "content": 'say "<hi>" & é'}]


def render(source: str) -> str:
    return ChatTemplate(source, {"bos_token": "<s>"}).render(MESSAGES)


def test_special_tokens_messages_and_the_generation_prompt_are_there() -> None:
    source = "{{ bos_token }}{{ messages[0].role }}{% if add_generation_prompt %}>{% endif %}{{ eos_token }}"
    assert render(source) == "<s>user>"


def test_json_is_written_as_templates_expect_it() -> None:
    assert render("{{ messages[0].content | tojson }}") == '"say \\"<hi>\\" & é"'
    assert render("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}") == '{\n "a": 2,\n "b": 1\n}'


def test_loop_controls_generation_blocks_and_the_date_work() -> None:
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"
    assert render("{{ strftime_now('%Y') | int > 2000 }}") == "True"


def test_block_tags_leave_no_blanks_behind() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"


def test_a_refusal_of_the_template_reaches_the_client_in_its_words() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].nothing.more }}",
        "{{ 1 // 0 }}",
        "{{ messages[7].role.x }}",
        "{{ 'a' * 2 ** 70 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
    ],
)
def test_a_template_that_fails_or_breaks_out_refuses_the_request(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template refuses"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{%- for m in messages -%}\n  {{- m['content'] | trim | tojson(indent=2) -}}\n{%- endfor %}\n{{ bos_token }}\n",
        "{% set s = namespace(n=0) %}{% for m in messages %}{% set s.n = s.n + 1 %}{% continue %}{% endfor %}{{ s.n }}",
        "{% macro say(m) %}<{{ m.role }}>{% endmacro %}\n{% if not tools %}\n    {{ say(messages[-1]) }}\n{% endif %}x",
        "{{ undefined_name }}{{ messages[0].get('tool_calls') is none }}{{ documents is defined }}{{ pad_token }}",
    ],
)
def test_a_template_renders_as_transformers_renders_it(source: str) -> None:
    oracle = AutoTokenizer.from_pretrained(BUNDLED)
    expected = oracle.apply_chat_template(MESSAGES, chat_template=source, add_generation_prompt=True, tokenize=False)
    tokens = {"bos_token": oracle.bos_token, "eos_token": oracle.eos_token, "pad_token": oracle.pad_token}
    assert ChatTemplate(source, tokens).render(MESSAGES) == expected


def test_a_template_that_is_no_jinja_is_refused_at_the_start_with_its_line() -> None:
    with pytest.raises(CheckpointError, match="line 2 of the chat template"):
        ChatTemplate("fine\n{% if %}", {})
