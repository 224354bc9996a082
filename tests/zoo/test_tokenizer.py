"""The bundled tokenizer brings back any text, sees single digits and writes conversations as the model learned them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.zoo.bundle import BUNDLED_MODEL
from segue.zoo.problems import Message, chat_messages, evaluation_problem
from segue.zoo.rows import Encoder
from segue.zoo.tokenizer import BEGIN, SPECIAL_TOKENS, VOCAB_SIZE, train_tokenizer
from tests.zoo.oracle import TOKENIZER, encode, encode_chat, render_chat


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text


@given(st.integers(0))
def test_every_digit_is_a_token(number: int) -> None:
    digits = str(number)
    assert TOKENIZER.convert_ids_to_tokens(encode(digits)) == list(digits)


def test_special_tokens_come_first_and_the_vocabulary_is_full() -> None:
    assert TOKENIZER.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert len(TOKENIZER) == VOCAB_SIZE


@pytest.mark.slow
def test_training_it_again_gives_the_bundled_one() -> None:
    assert train_tokenizer().get_vocab() == TOKENIZER.get_vocab()


def test_a_system_message_opens_the_conversation() -> None:
    messages: list[Message] = [{"role": "system", "content": "Count."}, {"role": "user", "content": "1 + 1?"}]
    text = render_chat(messages, add_generation_prompt=True)
    assert text == "<|begin|><|system|>Count.<|end|><|user|>1 + 1?<|end|><|assistant|>"


@pytest.mark.parametrize("example_count", [0, 8])
def test_a_chat_prompt_is_the_start_of_a_training_row_token_for_token(example_count: int) -> None:
    problem, *examples = (evaluation_problem(1, index) for index in range(example_count + 1))
    prompt = encode_chat(chat_messages(problem, examples), add_generation_prompt=True)
    encoder = Encoder(BUNDLED_MODEL)
    *shots, asked = encoder.encode([*examples, problem])
    row = [encoder.begin, *(token for shot in shots for token in shot.ids), *asked.ids[: asked.question_count]]
    assert prompt == row
    assert TOKENIZER.convert_ids_to_tokens(row[0]) == BEGIN
