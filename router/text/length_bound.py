"""How many bytes of a text one token can stand for at most, read off a tokenizer's file; counts no tokens itself.

The bound must be safe: a tokenizer that may drop bytes, or swallow any number of them in one token, has none.
"""

import json
from collections.abc import Iterable, Iterator, Mapping

from tokenizers import Tokenizer

from router.text.token_bytes import PIECE_SPACE, letters_of_bytes

# NFC puts at most three bytes of UTF-8 into one (Unicode FAQ on normalization: expansion of NFD).
_NFC_SHRINKS = 3
_KEEPING_PRE_TOKENIZERS = ("ByteLevel", "Metaspace", "Digits")


def bytes_per_token_max(tokenizer: Tokenizer) -> int | None:
    """None where nothing is known for sure."""
    file = json.loads(tokenizer.to_str())
    factor = _shrinking(file["normalizer"])
    pre_tokenizers = list(_members(file["pre_tokenizer"], "pretokenizers"))
    if factor is None or not all(map(_keeps_everything, pre_tokenizers)):
        return None
    if any(added["lstrip"] or added["rstrip"] for added in file["added_tokens"]):
        return None
    letters = letters_of_bytes()
    vocabulary = set(tokenizer.get_vocab(with_added_tokens=False))
    added = [len(token["content"].encode()) for token in file["added_tokens"]]
    if any(step["type"] == "ByteLevel" for step in pre_tokenizers):
        if not vocabulary.issuperset(letters):
            return None
        spelled = [len(token) if letters.keys() >= set(token) else len(token.encode()) for token in vocabulary]
    else:
        if not file["model"].get("byte_fallback") or not vocabulary.issuperset(f"<0x{i:02X}>" for i in range(256)):
            return None
        spelled = [len(token.replace(PIECE_SPACE, " ").encode()) for token in vocabulary]
    return factor * max((*spelled, *added))


def _shrinking(normalizer: Mapping[str, object] | None) -> int | None:
    """By what factor a text may get shorter before it is cut into tokens."""
    factor = 1
    for step in _members(normalizer, "normalizers"):
        match step:
            case {"type": "NFC"}:
                factor *= _NFC_SHRINKS
            case {"type": "Prepend"}:
                continue
            case {"type": "Replace", "pattern": {"String": " "} | {"Regex": " "}, "content": str(content)} if content:
                continue
            case _:
                return None
    return factor


def _keeps_everything(pre_tokenizer: Mapping[str, object]) -> bool:
    match pre_tokenizer:
        case {"type": "Split", "behavior": behavior}:
            return behavior != "Removed"
        case {"type": kind}:
            return kind in _KEEPING_PRE_TOKENIZERS
    return False


def _members(step: Mapping[str, object] | None, name: str) -> Iterator[Mapping[str, object]]:
    """A step's parts, out of the sequences that they are nested in."""
    if step is None:
        return
    if step.get("type") != "Sequence":
        yield step
        return
    members = step[name]
    assert isinstance(members, Iterable), f"the {name} of a sequence are a list"
    for member in members:
        yield from _members(member, name)
