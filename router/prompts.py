"""Prompts as tokens, off the event loop where they are long; knows nothing of HTTP."""

import asyncio
from collections.abc import Mapping, Sequence

from router.text.tokenizer import Tokenizer
from segue.errors import InvalidRequest

# Above this many characters the tokenizer runs on a thread: it would hold up every stream for more than a millisecond.
INLINE_CHARS_MAX = 4096


async def tokens_of_prompts(
    tokenizer: Tokenizer, prompt: str | list[int] | list[str] | list[list[int]]
) -> list[Sequence[int]]:
    """One list of token ids per prompt. Raises InvalidRequest when there is none."""
    if isinstance(prompt, str):
        return [await _encode(tokenizer, prompt)]
    if not prompt:
        raise InvalidRequest("the prompt is empty", param="prompt")
    several: list[Sequence[int]] = []
    single: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            single.append(part)
        else:
            several.append(await _encode(tokenizer, part) if isinstance(part, str) else part)
    return several or [single]


async def tokens_of_messages(tokenizer: Tokenizer, messages: Sequence[Mapping[str, object]]) -> list[int]:
    """The conversation as the model's chat template writes it. Raises InvalidRequest when that cannot be done."""
    if sum(_length(message.get("content")) for message in messages) <= INLINE_CHARS_MAX:
        return tokenizer.apply_chat_template(messages)
    return await asyncio.to_thread(tokenizer.apply_chat_template, messages)


async def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    if len(text) <= INLINE_CHARS_MAX:
        return tokenizer.encode(text)
    return await asyncio.to_thread(tokenizer.encode, text)


def _length(content: object) -> int:
    """Characters of a message; one in parts counts as long."""
    return len(content) if isinstance(content, str) else INLINE_CHARS_MAX
