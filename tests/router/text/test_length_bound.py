"""A text longer than its tokens could be is told by its length; where nothing is known for sure, nothing is claimed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as TokenizerFile

from router.text.length_bound import bytes_per_token_max
from router.text.tokenizer import Tokenizer
from router.text.tokenizer_folder import read_tokenizer
from segue.errors import ContextTooLong
from tests.router.text.tokenizers_for_tests import BUNDLED, bundled, byte_level_file, pieces_file, tokenizer_of


def composing() -> TokenizerFile:
    file = byte_level_file()
    file.normalizer = normalizers.NFC()
    return file


FILES = {
    "bundled": read_tokenizer(BUNDLED),
    "bytes": byte_level_file(AddedToken("<|long one|>", special=True)),
    "pieces": pieces_file(),
    "composing": composing(),
}
# What normal forms put together, long runs, and what is spelled in several bytes.
ODD = (
    "e\u0301",
    "\u03b1\u0313\u0300\u0345",
    "\u1100\u1161\u11a8",
    "  " * 9,
    "\n" * 9,
    "<|long one|>",
    "0" * 9,
    "\U0001f600",
    "a",
)


@given(st.text() | st.lists(st.sampled_from(ODD), max_size=30).map("".join), st.sampled_from(sorted(FILES)))
def test_no_text_has_fewer_tokens_than_the_bound_says(text: str, name: str) -> None:
    bound = bytes_per_token_max(FILES[name])
    assert bound is not None
    assert len(text.encode()) <= bound * len(FILES[name].encode(text, add_special_tokens=False).ids)


def test_the_bound_of_the_bundled_tokenizer_is_its_longest_token() -> None:
    tokenizer = bundled()
    longest = max(len(tokenizer.token_bytes[token]) for token in range(tokenizer.vocab_size))
    assert bytes_per_token_max(FILES["bundled"]) == longest


def without_bytes() -> TokenizerFile:
    return TokenizerFile(models.BPE({"a": 0, "b": 1}, []))


def changed(
    normalizer: normalizers.Normalizer | None = None,
    pre_tokenizer: pre_tokenizers.PreTokenizer | None = None,
    *added: AddedToken,
) -> TokenizerFile:
    file = byte_level_file(*added)
    if normalizer is not None:
        file.normalizer = normalizer
    if pre_tokenizer is not None:
        file.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizer, file.pre_tokenizer])
    return file


@pytest.mark.parametrize(
    "file",
    [
        without_bytes(),
        changed(normalizers.NFKC()),
        changed(normalizers.Sequence([normalizers.NFC(), normalizers.Strip()])),
        changed(normalizers.Replace("  ", " ")),
        changed(None, pre_tokenizers.Split(" ", "removed")),
        changed(None, pre_tokenizers.WhitespaceSplit()),
        changed(None, None, AddedToken("<x>", lstrip=True)),
    ],
    ids=["no bytes", "NFKC", "strip", "shorter", "removed", "whitespace", "added"],
)
def test_a_tokenizer_that_may_swallow_text_has_no_bound(file: TokenizerFile) -> None:
    assert bytes_per_token_max(file) is None


def small(tokens_max: int, text: str, tokenizer: Tokenizer) -> bool:
    """Whether a text is taken as a prompt and as a chat."""
    try:
        tokenizer.encode(text, tokens_max)
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokens_max)
    except ContextTooLong:
        return False
    return True


def test_only_texts_that_cannot_fit_are_refused_by_their_length() -> None:
    tokenizer = tokenizer_of(byte_level_file())
    frame = len(tokenizer.apply_chat_template([{"role": "user", "content": ""}]))
    assert small(frame + 5, "x" * 5, tokenizer)
    assert not small(frame + 4, "x" * 5, tokenizer)
    with pytest.raises(ContextTooLong, match="6 tokens or more") as refused:
        tokenizer.encode("x" * 6, 5)
    assert refused.value.param == "prompt"
    swallowing = tokenizer_of(changed(None, None, AddedToken("<x>", lstrip=True)))
    assert small(4, "x" * 5, swallowing)
