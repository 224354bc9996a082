"""Reads the tokenizer's files of a model folder; every file that cannot be used is named."""

from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer as TokenizerFile

from router.text.chat_template import ChatTemplate
from segue.errors import CheckpointError
from segue.json_file import read_json_object

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> TokenizerFile:
    """tokenizer.json, without the cuts and padding that training may have left in it."""
    path = folder / "tokenizer.json"
    text = _read_text(path)
    try:
        file = TokenizerFile.from_str(text)
    except Exception as error:
        # The library has no error class of its own: bare Exception is how it says that it cannot parse.
        if type(error) is Exception:
            raise CheckpointError(f"{path} is not a tokenizer that can be read: {error}") from error
        raise
    file.no_truncation()
    file.no_padding()
    return file


def read_chat_template(folder: Path) -> ChatTemplate | None:
    """chat_template.jinja, else the template in tokenizer_config.json; None when there is neither."""
    config_path = folder / "tokenizer_config.json"
    config = read_json_object(config_path) if config_path.exists() else {}
    path = folder / "chat_template.jinja"
    source = _read_text(path) if path.exists() else _source_in(config)
    return None if source is None else ChatTemplate(source, _special_tokens(config))


def _source_in(config: Mapping[str, object]) -> str | None:
    match config.get("chat_template"):
        case None:
            return None
        case str(source):
            return source
        case [*named]:
            for entry in named:
                match entry:
                    case {"name": "default", "template": str(source)}:
                        return source
    raise CheckpointError("chat_template in tokenizer_config.json is neither a text nor a list with a 'default'")


def _special_tokens(config: Mapping[str, object]) -> dict[str, object]:
    """Special tokens by their name in templates; written as a text or as an object with `content`."""
    found: dict[str, object] = {}
    for name in SPECIAL_TOKEN_NAMES:
        match config.get(name):
            case str(text) | {"content": str(text)}:
                found[name] = text
    match config.get("additional_special_tokens"):
        case [*texts]:
            found["additional_special_tokens"] = texts
    return found


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
