"""The bytes that each token stands for, read off a tokenizer's decoder; the ground for streaming text and for logprobs.

Two kinds of vocabulary spell bytes in text: byte-level BPE (one printable letter per byte, introduced by GPT-2) and
SentencePiece pieces (a low line for a space, `<0x0A>` for a byte that no piece has).
"""

import json
import re
from collections.abc import Iterable
from enum import StrEnum

from tokenizers import Tokenizer

from segue.errors import CheckpointError


class Spelling(StrEnum):
    """How a vocabulary spells bytes."""

    BYTE_LEVEL = "byte level"
    PIECES = "pieces"


BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
PIECE_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def letters_of_bytes() -> dict[str, int]:
    """Byte-level BPE's alphabet: printable Latin-1 letters stand for themselves, other bytes are U+0100 and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in printable]
    return letters | {chr(256 + place): byte for place, byte in enumerate(hidden)}


class TokenBytes:
    """Bytes by token id, spelled out at first use and kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises CheckpointError when the tokenizer has a decoder of another kind."""
        description = json.loads(tokenizer.to_str())["decoder"]
        steps = list(_steps(description))
        kinds = {str(step.get("type")) for step in steps}
        if "ByteLevel" in kinds:
            self._spelling = Spelling.BYTE_LEVEL
        elif kinds & {"ByteFallback", "Metaspace"}:
            self._spelling = Spelling.PIECES
        else:
            raise CheckpointError(
                f"tokenizer.json has the decoder {description}; byte-level and SentencePiece ones are supported"
            )
        self.strips_first_space = any(map(_strips_first_space, steps))
        self._tokenizer = tokenizer
        self._added = {token_id: added.content for token_id, added in tokenizer.get_added_tokens_decoder().items()}
        self._letters = letters_of_bytes()
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """Nothing for an id that the tokenizer does not know: models pad their vocabulary."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._spelling is Spelling.BYTE_LEVEL:
            values = [self._letters.get(letter) for letter in token]
            spelled = [value for value in values if value is not None]
            # An added token may hold letters outside the alphabet; it is then text, not spelled bytes.
            return bytes(spelled) if len(spelled) == len(token) else token.encode()
        if (byte := BYTE_PIECE.fullmatch(token)) and token_id not in self._added:
            return bytes.fromhex(byte[1])
        return token.replace(PIECE_SPACE, " ").encode()


def _steps(decoder: object) -> Iterable[dict[str, object]]:
    """A decoder's parts, out of the sequences that they are nested in."""
    if not isinstance(decoder, dict):
        return
    if decoder.get("type") != "Sequence":
        yield decoder
        return
    for member in decoder.get("decoders", ()):
        yield from _steps(member)


def _strips_first_space(step: dict[str, object]) -> bool:
    match step:
        case {"type": "Strip", "content": " ", "start": 1}:
            return True
        case {"type": "Metaspace", "prepend_scheme": "always" | "first"}:
            return True
    return False
