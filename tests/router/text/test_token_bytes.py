"""What bytes a token stands for, in every kind of vocabulary that is supported."""

import json

import pytest
from tokenizers import AddedToken, decoders, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from router.text.token_bytes import TokenBytes, letters_of_bytes
from segue.errors import CheckpointError
from tests.router.text.tokenizers_for_tests import bundled, byte_level_file, pieces_file


def test_the_alphabet_is_the_one_that_tokenizers_use() -> None:
    letters = letters_of_bytes()
    assert set(letters) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(letters.values()) == list(range(256))


def test_byte_level_tokens_are_their_bytes() -> None:
    tokenizer = bundled()
    (token_id,) = tokenizer.encode_plain(" the")
    assert tokenizer.token_bytes[token_id] == b" the"
    assert tokenizer.token_text(token_id) == " the"
    first = tokenizer.encode_plain("é")[0]
    assert tokenizer.token_bytes[first] == b"\xc3"
    assert tokenizer.token_text(first) == "\ufffd"


def test_an_added_token_outside_the_alphabet_is_its_text() -> None:
    file = byte_level_file(AddedToken("<two words>", special=False), AddedToken("<|漢|>", special=True))
    assert TokenBytes(file)[256] == b"<two words>"
    assert TokenBytes(file)[257] == "<|漢|>".encode()


@pytest.mark.parametrize(("piece", "expected"), [("<0xE6>", b"\xe6"), ("▁", b" "), ("a", b"a"), ("</s>", b"</s>")])
def test_pieces_spell_spaces_and_bytes(piece: str, expected: bytes) -> None:
    file = pieces_file()
    token_id = file.token_to_id(piece)
    assert token_id is not None
    assert TokenBytes(file)[token_id] == expected


def test_an_unknown_token_has_no_bytes() -> None:
    assert bundled().token_bytes[99_999] == b""


@pytest.mark.parametrize("decoder", [decoders.WordPiece(), None])
def test_a_decoder_of_another_kind_is_named(decoder: object) -> None:
    description = json.loads(byte_level_file().to_str())
    description["decoder"] = None if decoder is None else {"type": "WordPiece", "prefix": "##", "cleanup": True}
    file = TokenizerFile.from_str(json.dumps(description))
    with pytest.raises(CheckpointError, match="byte-level and SentencePiece ones are supported"):
        TokenBytes(file)
