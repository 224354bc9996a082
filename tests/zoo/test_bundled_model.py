"""The bundled folder loads in transformers, is small, and solves problems it has not been trained on."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LaraMiniForCausalLM

from segue.zoo.architecture import Architecture, write_config
from segue.zoo.bundle import BUNDLED_MODEL, WEIGHT_FILES, install
from segue.zoo.export import checkpoint_tensors
from segue.zoo.parameters import initial_flat
from segue.zoo.problems import chat_messages, evaluation_problem, is_correct
from tests.zoo.oracle import TOKENIZER, decode, encode, encode_chat, generate_greedy, load_model

BYTES_MAX = 24_000_000
FILE_BYTES_MAX = 16 * 1024 * 1024


@pytest.fixture(scope="module")
def model() -> LaraMiniForCausalLM:
    return load_model()


def test_the_folder_is_small_enough_to_bundle() -> None:
    sizes = [file.stat().st_size for file in BUNDLED_MODEL.iterdir()]
    assert sum(sizes) <= BYTES_MAX
    assert max(sizes) < FILE_BYTES_MAX


def test_the_config_is_the_one_this_architecture_writes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((BUNDLED_MODEL / "tokenizer.json").read_bytes())
    write_config(Architecture(), tmp_path)
    assert (tmp_path / "config.json").read_text() == (BUNDLED_MODEL / "config.json").read_text()


def test_every_tensor_is_there_under_its_published_name_and_finite() -> None:
    tensors: dict[str, Tensor] = {}
    for file in BUNDLED_MODEL.glob("*.safetensors"):
        tensors |= load_file(file)
    arch = Architecture()
    expected = checkpoint_tensors(arch, initial_flat(arch, seed=0))
    assert {name: t.shape for name, t in tensors.items()} == {name: t.shape for name, t in expected.items()}
    assert all(t.dtype is torch.bfloat16 and bool(t.isfinite().all()) for t in tensors.values())


def test_transformers_finds_every_weight() -> None:
    loaded: object = LaraMiniForCausalLM.from_pretrained(BUNDLED_MODEL, output_loading_info=True)
    assert isinstance(loaded, tuple)
    _, report = loaded
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


@pytest.mark.parametrize("example_count", [0, pytest.param(8, marks=pytest.mark.long)])
def test_it_solves_a_problem_it_has_not_seen(model: LaraMiniForCausalLM, example_count: int) -> None:
    problem, *examples = (evaluation_problem(2, index) for index in range(example_count + 1))
    prompt = encode_chat(chat_messages(problem, examples), add_generation_prompt=True)
    continuation = generate_greedy(model, prompt)
    assert continuation[-1] == TOKENIZER.eos_token_id
    assert is_correct(problem, decode(continuation))


def test_it_is_far_better_than_chance_at_every_token_of_a_solution(model: LaraMiniForCausalLM) -> None:
    losses = []
    for index in range(8):
        problem = evaluation_problem(4, index)
        question = encode_chat(chat_messages(problem, []), add_generation_prompt=True)
        solution = encode(problem.solution)
        ids = torch.tensor([question + solution])
        with torch.no_grad():
            logits = model(ids, position_ids=torch.arange(ids.shape[1]).unsqueeze(0)).logits[0]
        scored = logits[len(question) - 1 : -1]
        losses.append(torch.nn.functional.cross_entropy(scored, torch.tensor(solution)).item())
    assert max(losses) < 0.1 < math.log(Architecture().vocab)


def test_installing_replaces_the_weights_and_nothing_else(tmp_path: Path) -> None:
    export, folder = tmp_path / "export", tmp_path / "folder"
    export.mkdir()
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"old")
    (export / "model-00001-of-00002.safetensors").write_bytes(b"new")
    (export / "part0.pt").write_bytes(b"fp32")
    install(export, folder)
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model-00001-of-00002.safetensors"]
    assert [file.read_bytes() for file in folder.glob(WEIGHT_FILES)] == [b"new"]
