"""The tokenizer against transformers, and files that cannot be used."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from router.text.tokenizer import Tokenizer
from segue.errors import CheckpointError, InvalidRequest
from tests.router.text.tokenizers_for_tests import BUNDLED, bundled, byte_level_file, tokenizer_of

CHATS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is 2 + 2?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " two  spaces \n\n and lines\n"}],
    [
        {"role": "user", "content": "Grüße 漢字 😀"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "> quoted <"},
    ],
    [{"role": "user", "content": "user"}, {"role": "assistant", "content": "<|"}, {"role": "user", "content": "|>"}],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The bundled tokenizer's files, to be changed."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(BUNDLED / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("chat", CHATS)
def test_a_chat_becomes_the_tokens_that_transformers_makes_of_it(chat: list[dict[str, str]]) -> None:
    oracle = AutoTokenizer.from_pretrained(BUNDLED)
    expected = oracle.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert bundled().apply_chat_template(chat) == expected


def test_a_prompt_becomes_the_tokens_that_transformers_makes_of_it() -> None:
    oracle = AutoTokenizer.from_pretrained(BUNDLED)
    for text in ("", "plain", "<|begin|><|user|>raw prompts may hold control tokens<|end|><|assistant|>", "é😀\r\n\t"):
        assert bundled().encode(text) == oracle(text)["input_ids"]


def test_a_developer_speaks_as_the_system_unless_the_template_knows_developers() -> None:
    chat = [{"role": "developer", "content": "Be kind."}]
    as_system = [{"role": "system", "content": "Be kind."}]
    assert bundled().apply_chat_template(chat) == bundled().apply_chat_template(as_system)
    aware = tokenizer_of(byte_level_file(), "{% if messages[0].role == 'developer' %}d{% else %}s{% endif %}")
    assert aware.decode(aware.apply_chat_template(chat)) == "d"


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="half a surrogate pair at character 2"):
        bundled().encode("ab\ud800")
    with pytest.raises(InvalidRequest, match="surrogate"):
        bundled().apply_chat_template([{"role": "user", "content": "\udc00"}])


def test_a_model_without_a_template_refuses_chats_but_not_prompts(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(folder)
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.apply_chat_template([{"role": "user", "content": "x"}])
    assert tokenizer.encode("x") == bundled().encode("x")


def test_a_template_file_goes_before_the_one_in_the_config(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("from the file")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.apply_chat_template(CHATS[0])) == "from the file"


def test_of_several_named_templates_the_default_is_used(folder: Path) -> None:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes {{ eos_token }}"}]
    config |= {"chat_template": named, "eos_token": {"content": "<|end|>", "special": True}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.apply_chat_template(CHATS[0])
    assert tokenizer.decode(ids, skip_special_tokens=False) == "yes <|end|>"
    config["chat_template"] = named[:1]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="neither a text nor a list with a 'default'"):
        Tokenizer.from_folder(folder)


def test_cuts_and_padding_left_in_the_file_are_taken_out(folder: Path) -> None:
    description = json.loads((folder / "tokenizer.json").read_text())
    description["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    (folder / "tokenizer.json").write_text(json.dumps(description))
    assert Tokenizer.from_folder(folder).encode("a b c d e f g") == bundled().encode("a b c d e f g")


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"version": "1.0"}', b"\xff\xfe"])
def test_a_tokenizer_that_cannot_be_read_is_named(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not"):
        Tokenizer.from_folder(folder)


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"cannot read .*tokenizer\.json: No such file"):
        Tokenizer.from_folder(folder)


async def test_a_long_text_is_read_beside_the_event_loop() -> None:
    reading = asyncio.create_task(asyncio.to_thread(bundled().encode, "a " * 300_000))
    turns = 0
    while not reading.done():
        await asyncio.wait([reading], timeout=0.001)
        turns += 1
    assert len(await reading) == 300_001
    assert turns > 20
