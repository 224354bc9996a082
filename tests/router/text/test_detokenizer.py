"""Streaming detokenization: adds up to the decoding of the whole, and never shows a part of a character."""

import random

from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as TokenizerFile

from router.text.tokenizer import Tokenizer
from tests.router.text.tokenizers_for_tests import BUNDLED, bundled, byte_level_file, pieces_file, tokenizer_of

TOKENIZER = bundled()
FILE = TokenizerFile.from_file(str(BUNDLED / "tokenizer.json"))
BYTES = byte_level_file()

any_text = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aé漢😀👨‍👩‍👧🏳️‍🌈\ufffd \n"))


def streamed(tokenizer: Tokenizer, token_ids: list[int], chunk: int = 1) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special_tokens=False)
    parts = [detokenizer.push(token_ids[at : at + chunk]) for at in range(0, len(token_ids), chunk)]
    return [*parts, detokenizer.flush()]


@given(any_text, st.integers(1, 5))
def test_streamed_text_adds_up_to_the_text_and_no_character_is_ever_broken(text: str, chunk: int) -> None:
    parts = streamed(TOKENIZER, TOKENIZER.encode_plain(text), chunk)
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in parts)


@given(st.lists(st.integers(0, FILE.get_vocab_size() - 1), max_size=60))
def test_any_tokens_stream_to_what_the_library_decodes(token_ids: list[int]) -> None:
    assert "".join(streamed(TOKENIZER, token_ids)) == FILE.decode(token_ids, skip_special_tokens=False)
    assert TOKENIZER.decode(token_ids) == FILE.decode(token_ids, skip_special_tokens=True)


@given(st.binary(max_size=60) | st.lists(st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xA9, 0x61]), max_size=30))
def test_garbage_bytes_stream_to_what_the_library_decodes(raw: bytes | list[int]) -> None:
    tokenizer = tokenizer_of(BYTES)
    spelled = {tokenizer.token_bytes[token_id]: token_id for token_id in range(256)}
    token_ids = [spelled[bytes([byte])] for byte in raw]
    assert "".join(streamed(tokenizer, token_ids)) == BYTES.decode(token_ids)


def test_a_character_spread_over_tokens_comes_with_its_last_token() -> None:
    detokenizer = TOKENIZER.detokenizer()
    token_ids = TOKENIZER.encode_plain("😀")
    assert len(token_ids) == 4
    assert [detokenizer.push([token_id]) for token_id in token_ids] == ["", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_an_output_that_ends_within_a_character_shows_it_only_at_the_end() -> None:
    detokenizer = TOKENIZER.detokenizer()
    token_ids = TOKENIZER.encode_plain("a😀")[:-1]
    assert "".join(detokenizer.push([token_id]) for token_id in token_ids) == "a"
    assert detokenizer.flush() == "\ufffd"


def test_special_tokens_are_shown_only_on_request() -> None:
    token_ids = TOKENIZER.encode("yes<|end|>no")
    assert TOKENIZER.decode(token_ids) == "yesno"
    assert TOKENIZER.decode(token_ids, skip_special_tokens=False) == "yes<|end|>no"


def test_tokens_beyond_the_vocabulary_have_no_text() -> None:
    assert TOKENIZER.decode([TOKENIZER.vocab_size, 10**6, *TOKENIZER.encode_plain("x")]) == "x"


@given(st.text("abc é漢😀 "), st.integers(0, 3))
def test_pieces_stream_to_what_the_library_decodes(text: str, chunk: int) -> None:
    file = pieces_file()
    tokenizer = tokenizer_of(file)
    token_ids = file.encode(text, add_special_tokens=False).ids
    expected = file.decode(token_ids)
    assert "".join(streamed(tokenizer, token_ids, chunk + 1)) == expected
    assert expected.strip() == text.strip()


def test_every_token_of_a_long_output_costs_the_same() -> None:
    # Counted, not timed: the detokenizer may keep no more than the bytes of one unfinished character.
    detokenizer = TOKENIZER.detokenizer()
    source = random.Random(3)
    for _ in range(20_000):
        detokenizer.push([source.randrange(TOKENIZER.vocab_size)])
        pending, _flag = detokenizer._decoder.getstate()
        assert len(pending) <= 3
