"""Logits equal those of transformers in any pages, chunks and company, on poisoned memory; lost state would be seen."""

import random
from collections.abc import Callable

import pytest
import torch
from transformers import PretrainedConfig

from segue.models.options import BuildOptions
from segue.weights.load import load_model
from tests.support.checkpoints import (
    FULL,
    LINEAR,
    SLIDING,
    VOCAB,
    Checkpoint,
    lara_mini_config,
    llama_config,
    qwen3_config,
    write_checkpoint,
)
from tests.support.step_contexts import Bench, Part, Run

TOLERANCE = 1e-4
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "lara_mini": lara_mini_config,
    "lara_mini of experts": lambda: lara_mini_config(LINEAR, SLIDING, FULL, window=5, experts=4),
    "lara_mini of the smallest window": lambda: lara_mini_config(window=2),
    "lara_mini without attention": lambda: lara_mini_config(LINEAR, LINEAR),
    "llama": llama_config,
    "llama with biases and scaling": lambda: llama_config(attention_bias=True, rope_parameters=LLAMA3),
    "qwen3": lambda: qwen3_config(FULL, FULL),
    "qwen3 with sliding layers": qwen3_config,
}
LENGTHS = (1, 2, 70, 131)
CHUNKS = (1, 2, 3, 37, 63, 64, 65)


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(CONFIGS[request.param](), tmp_path_factory.mktemp("model"))


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=count)


def run_mixed(bench: Bench, texts: list[list[int]], seed: int) -> list[Run]:
    """Every sequence to its end in steps of random company: decoded, extended by a random chunk, or left out."""
    draw = random.Random(seed)
    runs = [bench.start(text) for text in texts]
    while any(run.computed < len(text) for run, text in zip(runs, texts, strict=True)):
        parts = []
        for run, text in zip(runs, texts, strict=True):
            left = len(text) - run.computed
            if left == 0 or draw.random() < 0.3:
                continue
            decodes = run.computed > 0 and draw.random() < 0.4
            parts.append(Part(run, 1, decode=True) if decodes else Part(run, min(left, draw.choice(CHUNKS))))
        if parts:
            bench.run(*sorted(parts, key=lambda part: not part.decode))
    return runs


@pytest.mark.parametrize(
    ("deterministic", "page_tokens"),
    [
        *((False, size) for size in (1, 3, 16, 64)),
        *((True, size) for size in (3, 64)),
        *(pytest.param(True, size, marks=pytest.mark.long) for size in (1, 16)),
    ],
)
def test_mixed_batches_give_the_logits_of_transformers(
    checkpoint: Checkpoint, deterministic: bool, page_tokens: int
) -> None:
    model = load_model(checkpoint.folder, BuildOptions(deterministic=deterministic))
    texts = [some_tokens(length, seed) for seed, length in enumerate(LENGTHS)]
    runs = run_mixed(Bench(model, page_tokens=page_tokens, units=420), texts, seed=page_tokens)
    for run, text in zip(runs, texts, strict=True):
        torch.testing.assert_close(torch.cat(run.logits), checkpoint.logits(text), atol=TOLERANCE, rtol=0.0)


@pytest.mark.parametrize("first", [1, 40, 99])
def test_a_sequence_alone_gives_the_logits_of_transformers(checkpoint: Checkpoint, first: int) -> None:
    model, text = load_model(checkpoint.folder, BuildOptions()), some_tokens(100)
    bench = Bench(model)
    run = bench.start(text)
    logits = torch.cat([bench.extend(run, first), bench.decode(run, len(text) - first)])
    torch.testing.assert_close(logits, checkpoint.logits(text), atol=TOLERANCE, rtol=0.0)


def test_losing_any_tensor_of_the_state_is_seen(checkpoint: Checkpoint) -> None:
    model, text = load_model(checkpoint.folder, BuildOptions()), some_tokens(60)
    expected = checkpoint.logits(text)[-1]
    for component in model.state.components:
        for tensor in component.tensors:
            bench = Bench(model)
            run = bench.start(text)
            bench.extend(run, len(text) - 1)
            bench.zero(run, (tensor.layer, tensor.name))
            moved = float((bench.decode(run, 1)[0] - expected).abs().max())
            assert moved > 100 * TOLERANCE, f"without {tensor.name} of layer {tensor.layer} logits move by {moved}"
