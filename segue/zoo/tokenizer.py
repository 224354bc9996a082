"""The bundled model's tokenizer: byte-level BPE with single digits and five special tokens.

It is trained on generated problems. Knows nothing of tensors.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from segue.zoo.problems import training_problem

BEGIN, USER, ASSISTANT, SYSTEM, END = "<|begin|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"
SPECIAL_TOKENS = (BEGIN, USER, ASSISTANT, SYSTEM, END)
VOCAB_SIZE = 2_048
MODEL_TOKENS_MAX = 4_096
CORPUS_PROBLEMS = 20_000

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# Words and marks, each with the space before it; a digit stands alone so that numbers align column by column.
_PIECES = Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s")

# A little text that is not a problem, so that everyday words do not fall apart into bytes.
_PLAIN_ENGLISH = """\
Hello! How are you today? I am fine, thank you. You are a helpful assistant who answers questions about numbers.
Please explain the answer step by step, then write the final result on its own line. What is the capital of France?
The quick brown fox jumps over the lazy dog. Once upon a time there was a small model that could only count.
It was the best of days; people went to work, children went to school, and the sun was warm. Why? Because it was June.
Write a short story, a list of three things, or a letter to a friend. I do not know, but I will try. Yes. No. Maybe.
"""


def _corpus() -> Iterator[str]:
    for number in range(CORPUS_PROBLEMS):
        problem = training_problem(number)
        yield problem.question
        yield problem.solution
    for _ in range(50):
        yield _PLAIN_ENGLISH


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and the two files from which transformers and the router learn how to use it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "pad_token": END,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM],
        "model_max_length": MODEL_TOKENS_MAX,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    end_id = token_id(tokenizer, END)
    generation = {
        "bos_token_id": token_id(tokenizer, BEGIN),
        "eos_token_id": end_id,
        "pad_token_id": end_id,
        "do_sample": False,
    }
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
