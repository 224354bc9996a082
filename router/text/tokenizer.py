"""A checkpoint's tokenizer as the router uses it: texts and chats to tokens, tokens to text. Knows no requests."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer as TokenizerFile

from router.text.chat_template import ChatTemplate
from router.text.control_tokens import ControlTokens
from router.text.detokenizer import Detokenizer
from router.text.length_bound import bytes_per_token_max
from router.text.messages import plain_messages
from router.text.token_bytes import TokenBytes
from router.text.tokenizer_folder import read_chat_template, read_tokenizer
from segue.errors import ContextTooLong, InvalidRequest


class Tokenizer:
    """Two readings of one vocabulary: one reads control tokens in a text as such, one reads them as text."""

    def __init__(self, full: TokenizerFile, plain: TokenizerFile, chat_template: ChatTemplate | None) -> None:
        """`full` and `plain` are the same tokenizer, owned by this object from here on.

        Raises CheckpointError when its decoder is of an unknown kind.
        """
        plain.encode_special_tokens = True
        self._full = full
        self._plain = plain
        self._chat_template = chat_template
        self._special = {i: added for i, added in full.get_added_tokens_decoder().items() if added.special}
        self._special_id = {added.content: token_id for token_id, added in self._special.items()}
        self._control = ControlTokens(self._special_id)
        self.special_ids = frozenset(self._special)
        self.token_bytes = TokenBytes(full)
        self._bytes_per_token_max = bytes_per_token_max(full)

    @staticmethod
    def from_folder(folder: Path) -> "Tokenizer":
        """Reads a model folder. Raises CheckpointError naming the file that is missing or cannot be used."""
        return Tokenizer(read_tokenizer(folder), read_tokenizer(folder), read_chat_template(folder))

    @property
    def vocab_size(self) -> int:
        """Tokens that have a text; a model's vocabulary may be padded beyond it."""
        return self._full.get_vocab_size()

    def encode(self, text: str, tokens_max: int | None = None) -> list[int]:
        """A prompt as the client wrote it: control tokens in it are control tokens, and the tokenizer adds its own.

        Raises InvalidRequest on half a surrogate pair, as every encoding here does, and ContextTooLong for a text that
        can be told by its length alone to have more than `tokens_max` tokens.
        """
        self._require_length(text, tokens_max, "prompt")
        return _encode(self._full, text, adding_special=True)

    def encode_plain(self, text: str) -> list[int]:
        """A text whose control tokens are plain text.

        Raises InvalidRequest in the odd vocabulary whose model itself would put such a token together.
        """
        ids = _encode(self._plain, text, adding_special=False)
        if not self.special_ids.isdisjoint(ids):
            raise InvalidRequest("the text contains a control token that this tokenizer cannot write as plain text")
        return ids

    def apply_chat_template(self, messages: Sequence[Mapping[str, object]], tokens_max: int | None = None) -> list[int]:
        """The prompt of a chat. Only control tokens that the template writes become control tokens.

        Raises InvalidRequest when the messages cannot be served or the template refuses them, and ContextTooLong as
        `encode` does.
        """
        template = self._chat_template
        if template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        plain = plain_messages(messages)
        mark = self._control.choose_mark([template.source, *(text for message in plain for text in message.values())])
        rendered = template.render([self._disarmed(message, template, mark) for message in plain])
        self._require_length(rendered.replace(mark, ""), tokens_max, "messages")
        if mark not in rendered:
            return _encode(self._full, rendered, adding_special=False)
        return self._encode_parts(self._control.split(rendered), mark)

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of a whole output at once."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A fresh detokenizer for one output."""
        return Detokenizer(self.token_bytes, skipped=self.special_ids if skip_special_tokens else frozenset())

    def token_text(self, token_id: int) -> str:
        """One token's own text, as logprobs report it: U+FFFD where it holds a part of a character only."""
        return self.token_bytes[token_id].decode("utf-8", "replace")

    def _require_length(self, text: str, tokens_max: int | None, param: str) -> None:
        if tokens_max is None or self._bytes_per_token_max is None:
            return
        # What cannot be encoded is refused in its own words later.
        tokens_min = -(-len(text.encode(errors="replace")) // self._bytes_per_token_max)
        if tokens_min > tokens_max:
            raise ContextTooLong(
                f"the prompt has {tokens_min} tokens or more; with at least 1 output token that exceeds the context "
                f"length of {tokens_max + 1}",
                param=param,
            )

    def _disarmed(self, message: Mapping[str, str], template: ChatTemplate, mark: str) -> dict[str, str]:
        disarmed = {field: self._control.disarm(text, mark) for field, text in message.items() if field != "role"}
        # A developer speaks as the system where the template does not know developers.
        as_system = message["role"] == "developer" and "developer" not in template.source
        return {"role": "system" if as_system else message["role"]} | disarmed

    def _encode_parts(self, parts: Sequence[str], mark: str) -> list[int]:
        """Texts and control tokens in turn; a control token may swallow the blanks beside it."""
        specials = [self._special_id[part] for part in parts[1::2]]
        ids: list[int] = []
        for number, text in enumerate(parts[0::2]):
            if number > 0:
                ids.append(specials[number - 1])
                text = text.lstrip() if self._special[specials[number - 1]].rstrip else text
            if number < len(specials) and self._special[specials[number]].lstrip:
                text = text.rstrip()
            ids += self.encode_plain(text.replace(mark, ""))
        return ids


def _encode(file: TokenizerFile, text: str, *, adding_special: bool) -> list[int]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"the text has half a surrogate pair at character {error.start}") from error
    # A batch of one: the plain call keeps Python's lock, and with it every stream, for as long as a long text takes.
    return file.encode_batch_fast([text], add_special_tokens=adding_special)[0].ids
