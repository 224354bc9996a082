"""On a CUDA device the bundled model gives the CPU's logits: whole prompts, chunks, decoding, and mixed company."""

import random
from pathlib import Path

import pytest
import torch

from segue.models.options import BuildOptions
from segue.runner.context import Model
from segue.weights.load import load_model
from tests.support.step_contexts import Bench, Part

pytestmark = pytest.mark.gpu

BUNDLED_MODEL = Path(__file__).parents[2] / "segue" / "zoo" / "model"
# Logits have a spread of about ten; two correct fp32 implementations differ by some 1e-5 of that.
TOLERANCE = 1e-3
# Past the window, several pages, neither a multiple of the kernels' chunk nor of a page.
TOKENS = 333


@pytest.fixture(scope="module")
def on_cuda() -> Model:
    return load_model(BUNDLED_MODEL, BuildOptions(device=torch.device("cuda")))


@pytest.fixture(scope="module")
def on_cpu() -> Model:
    return load_model(BUNDLED_MODEL, BuildOptions())


def some_tokens(model: Model, seed: int, count: int = TOKENS) -> list[int]:
    return random.Random(seed).choices(range(model.vocab_size), k=count)


def logits_by_chunks(model: Model, tokens: list[int], *chunks: int) -> torch.Tensor:
    bench = Bench(model)
    return bench.extend(bench.start(tokens), *chunks).cpu()


def require_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0.0)


def test_a_whole_prompt_has_the_logits_of_the_cpu(on_cuda: Model, on_cpu: Model) -> None:
    tokens = some_tokens(on_cpu, 0)
    require_equal(logits_by_chunks(on_cuda, tokens, TOKENS), logits_by_chunks(on_cpu, tokens, TOKENS))


def test_chunks_have_the_logits_of_the_cpu(on_cuda: Model, on_cpu: Model) -> None:
    tokens = some_tokens(on_cpu, 1)
    require_equal(logits_by_chunks(on_cuda, tokens, 1, 63, 65, 200, 4), logits_by_chunks(on_cpu, tokens, TOKENS))


def test_decoded_tokens_have_the_logits_of_the_cpu(on_cuda: Model, on_cpu: Model) -> None:
    tokens = some_tokens(on_cpu, 2)
    bench = Bench(on_cuda)
    sequence = bench.start(tokens)
    extended = bench.extend(sequence, 150)
    decoded = bench.decode(sequence, TOKENS - 150)
    require_equal(torch.cat([extended, decoded]).cpu(), logits_by_chunks(on_cpu, tokens, TOKENS))


def test_rows_of_a_mixed_step_have_the_logits_of_the_cpu(on_cuda: Model, on_cpu: Model) -> None:
    texts = [some_tokens(on_cpu, 3 + index, 200) for index in range(4)]
    bench = Bench(on_cuda)
    first, second, third, fourth = (bench.start(text) for text in texts)
    bench.run(Part(first, 130), Part(second, 64))
    bench.run(Part(first, 1, decode=True), Part(second, 1, decode=True), Part(third, 199), Part(fourth, 70))
    bench.run(*(Part(run, 1, decode=True) for run in (first, second, third, fourth)))
    for run, text in zip((first, second, third, fourth), texts, strict=True):
        require_equal(torch.cat(run.logits).cpu(), logits_by_chunks(on_cpu, text[: run.computed], run.computed))
