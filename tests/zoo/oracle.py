"""The bundled folder as transformers reads it, with types."""

from collections.abc import Sequence
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LaraMiniForCausalLM, PreTrainedTokenizerFast

from segue.zoo.bundle import BUNDLED_MODEL
from segue.zoo.problems import Message

TOKENIZER = cast(PreTrainedTokenizerFast, AutoTokenizer.from_pretrained(BUNDLED_MODEL))


def encode(text: str) -> list[int]:
    return cast(list[int], TOKENIZER(text)["input_ids"])


def decode(ids: Sequence[int]) -> str:
    return cast(str, TOKENIZER.decode(list(ids), skip_special_tokens=True))


def render_chat(messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
    turns = [{"role": str(message["role"]), "content": message["content"]} for message in messages]
    return cast(str, TOKENIZER.apply_chat_template(turns, tokenize=False, add_generation_prompt=add_generation_prompt))


def encode_chat(messages: Sequence[Message], *, add_generation_prompt: bool) -> list[int]:
    turns = [{"role": str(message["role"]), "content": message["content"]} for message in messages]
    ids = TOKENIZER.apply_chat_template(turns, return_dict=False, add_generation_prompt=add_generation_prompt)
    return cast(list[int], ids)


def load_model() -> LaraMiniForCausalLM:
    model = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
    assert isinstance(model, LaraMiniForCausalLM)
    return model


def generate_greedy(model: LaraMiniForCausalLM, prompt: list[int]) -> list[int]:
    """The continuation of the prompt, its end token included."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=320)
    assert isinstance(output, torch.Tensor)
    return cast(list[int], output[0, len(prompt) :].tolist())
