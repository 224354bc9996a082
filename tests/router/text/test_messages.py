"""Chat messages: what is accepted, and what is refused by its place."""

import pytest

from router.text.messages import plain_messages
from segue.errors import InvalidRequest


def test_text_parts_are_joined_by_line_breaks() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert plain_messages([{"role": "user", "content": parts}]) == [{"role": "user", "content": "one\ntwo"}]


def test_fields_that_are_null_are_left_out_and_known_texts_stay() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": None, "name": "bot", "refusal": None}
    assert plain_messages([message]) == [{"role": "assistant", "content": "", "name": "bot"}]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"content": "x"}, "messages[1].role"),
        ({"role": "tool", "content": "x"}, "messages[1].role"),
        ({"role": ["user"], "content": "x"}, "messages[1].role"),
        ({"role": "user"}, "messages[1].content"),
        ({"role": "user", "content": None}, "messages[1].content"),
        ({"role": "user", "content": []}, "messages[1].content"),
        ({"role": "user", "content": 5}, "messages[1].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}, "messages[1].content[1]"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[1].content[0]"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages[1].tool_calls"),
        ({"role": "user", "content": "", "name": 3}, "messages[1].name"),
    ],
)
def test_what_cannot_be_served_is_refused_by_its_place(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        plain_messages([{"role": "user", "content": "fine"}, message])
    assert caught.value.param == param
    assert param in caught.value.message


def test_no_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="messages is empty"):
        plain_messages([])
