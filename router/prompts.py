"""Prompts as tokens, off the event loop where they are long; knows nothing of HTTP."""

import asyncio
from collections.abc import Mapping, Sequence

from router.text.tokenizer import Tokenizer
from segue.errors import InvalidRequest

# Above this many characters the tokenizer runs on a thread: it would hold up every stream for more than a millisecond.
INLINE_CHARS_MAX = 4096
# An empty message takes the template about as long as so many characters take the tokenizer.
_MESSAGE_CHARS = 32


async def tokens_of_prompts(
    tokenizer: Tokenizer,
    prompt: str | list[int] | list[str] | list[list[int]],
    prompts_max: int,
    tokens_max: int | None = None,
) -> list[Sequence[int]]:
    """One list of token ids per prompt.

    Raises InvalidRequest when there is none, or more than `prompts_max`, and ContextTooLong for a text that is seen at
    once to have more than `tokens_max` tokens.
    """
    if isinstance(prompt, str):
        return await _encode(tokenizer, [prompt], tokens_max)
    if not prompt:
        raise InvalidRequest("the prompt is empty", param="prompt")
    texts: list[str] = []
    several: list[Sequence[int]] = []
    single: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            single.append(part)
        elif isinstance(part, str):
            texts.append(part)
        else:
            several.append(part)
    # Counted before any is encoded: a body has room for a million.
    if (count := len(texts) or len(several)) > prompts_max:
        raise InvalidRequest(f"there are {count} prompts, at most {prompts_max} are allowed", param="prompt")
    return await _encode(tokenizer, texts, tokens_max) if texts else several or [single]


async def tokens_of_messages(
    tokenizer: Tokenizer, messages: Sequence[Mapping[str, object]], tokens_max: int | None = None
) -> list[int]:
    """The conversation as the model's chat template writes it.

    Raises InvalidRequest when that cannot be done, and ContextTooLong as `tokens_of_prompts` does.
    """
    if sum(map(_length, messages)) <= INLINE_CHARS_MAX:
        return tokenizer.apply_chat_template(messages, tokens_max)
    return await asyncio.to_thread(tokenizer.apply_chat_template, messages, tokens_max)


async def _encode(tokenizer: Tokenizer, texts: Sequence[str], tokens_max: int | None) -> list[Sequence[int]]:
    if sum(map(len, texts)) <= INLINE_CHARS_MAX:
        return [tokenizer.encode(text, tokens_max) for text in texts]
    return await asyncio.to_thread(lambda: [tokenizer.encode(text, tokens_max) for text in texts])


def _length(message: Mapping[str, object]) -> int:
    """What a message costs, in characters: its texts and itself; one in parts counts as long."""
    texts = [value for value in message.values() if value is not None]
    return _MESSAGE_CHARS + sum(len(text) if isinstance(text, str) else INLINE_CHARS_MAX for text in texts)
