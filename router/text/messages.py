"""Checks chat messages and brings them to the plain form that chat templates expect; renders nothing."""

from collections.abc import Mapping, Sequence

from segue.errors import InvalidRequest

ROLES = ("system", "developer", "user", "assistant")
TEXT_FIELDS = ("name", "reasoning_content")


def plain_messages(messages: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """Messages of strings only: role, content (text parts joined by line breaks), and text fields that are set.

    Fields that are null are left out. Raises InvalidRequest naming the message and field that cannot be served.
    """
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    return [_plain(message, f"messages[{place}]") for place, message in enumerate(messages)]


def _plain(message: Mapping[str, object], place: str) -> dict[str, str]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequest(f"{place}.role is {role!r}; it must be one of {', '.join(ROLES)}", param=f"{place}.role")
    plain = {"role": str(role), "content": _content(message.get("content"), str(role), f"{place}.content")}
    for field, value in message.items():
        if field in ("role", "content") or value is None:
            continue
        if field not in TEXT_FIELDS or not isinstance(value, str):
            raise InvalidRequest(f"{place}.{field} is not supported", param=f"{place}.{field}")
        plain[field] = value
    return plain


def _content(content: object, role: str, place: str) -> str:
    match content:
        case str():
            return content
        case None if role == "assistant":
            return ""
        case [_, *_]:
            return "\n".join(_text_part(part, f"{place}[{number}]") for number, part in enumerate(content))
    raise InvalidRequest(f"{place} must be a string or a list of text parts", param=place)


def _text_part(part: object, place: str) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": str(kind)} if kind != "text":
            raise InvalidRequest(f"{place} is of type '{kind}'; this model reads text only", param=place)
    raise InvalidRequest(f'{place} must be {{"type": "text", "text": "..."}}', param=place)
