"""Tokenizers to try: the bundled one, and small hand-made ones of other kinds."""

from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from router.text.chat_template import ChatTemplate
from router.text.tokenizer import Tokenizer

BUNDLED = Path(__file__).parents[3] / "segue" / "zoo" / "model"

PLAIN_TEMPLATE = "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}<s>assistant:"


def bundled() -> Tokenizer:
    return Tokenizer.from_folder(BUNDLED)


def byte_level_file(*added: AddedToken) -> TokenizerFile:
    """Every byte is a token; then the added ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    file = TokenizerFile(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    file.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    file.decoder = decoders.ByteLevel()
    file.add_tokens(list(added))
    return file


def pieces_file() -> TokenizerFile:
    """Pieces as SentencePiece exports them, with a token per byte for what has no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefgh é"]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    file = TokenizerFile(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    file.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(Regex(" "), "▁")])
    file.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    file.add_special_tokens(["<unk>", "<s>", "</s>"])
    return file


def tokenizer_of(file: TokenizerFile, template: str | None = PLAIN_TEMPLATE) -> Tokenizer:
    copies = [TokenizerFile.from_str(file.to_str()) for _ in range(2)]
    return Tokenizer(copies[0], copies[1], None if template is None else ChatTemplate(template, {"bos_token": "<s>"}))
