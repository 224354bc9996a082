"""In deterministic mode a token's logits and all its state are the same bits in any company, chunks and pages."""

import random
from collections.abc import Callable

import pytest
import torch
from transformers import PretrainedConfig

from segue.models.options import BuildOptions
from segue.state.spec import DType
from segue.weights.load import load_model
from tests.support.checkpoints import VOCAB, lara_mini_config, qwen3_config, write_checkpoint
from tests.support.step_contexts import Bench, Part, Run

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "lara_mini": lara_mini_config,
    "lara_mini of experts": lambda: lara_mini_config(experts=5),
    "qwen3 with sliding layers": qwen3_config,
}
LENGTHS = (1, 9, 40, 75)
COMPANIES = 3


def texts_of(seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.choices(range(VOCAB), k=length) for length in LENGTHS]


def run_in_company(bench: Bench, texts: list[list[int]], draw: random.Random) -> list[Run]:
    """Every sequence to its end in random steps: decoded, extended by any chunk, or left out."""
    runs = [bench.start(text) for text in texts]
    while left := [run for run in runs if run.computed < len(run.request.prompt)]:
        chosen = draw.sample(left, draw.randint(1, len(left)))
        parts = []
        for run in chosen:
            rest = len(run.request.prompt) - run.computed
            decode = run.computed > 0 and draw.random() < 0.5
            parts.append(Part(run, 1 if decode else draw.randint(1, rest), decode))
        bench.run(*sorted(parts, key=lambda part: not part.decode))
    return runs


@pytest.mark.parametrize(
    ("name", "kv_dtype"),
    [
        *((name, None) for name in CONFIGS),
        ("lara_mini", DType.FLOAT8_E4M3),
        *(pytest.param(name, DType.FLOAT8_E4M3, marks=pytest.mark.long) for name in CONFIGS if name != "lara_mini"),
    ],
)
def test_a_token_has_the_same_bits_in_any_company(
    name: str, kv_dtype: DType | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = write_checkpoint(CONFIGS[name](), tmp_path_factory.mktemp("model"))
    model = load_model(checkpoint.folder, BuildOptions(kv_dtype=kv_dtype, deterministic=True))
    texts = texts_of(0)
    alone = []
    for text in texts:
        bench = Bench(model, page_tokens=1)
        run = bench.start(text)
        bench.decode(run, len(text))
        alone.append((torch.cat(run.logits), bench.state_bytes(run)))
    for company in range(COMPANIES):
        draw = random.Random(company)
        bench = Bench(model, page_tokens=draw.choice((3, 16, 64)), seed=company)
        for run, (logits, state) in zip(run_in_company(bench, texts, draw), alone, strict=True):
            assert torch.equal(torch.cat(run.logits), logits)
            for tensor, values in bench.state_bytes(run).items():
                assert torch.equal(values, state[tensor]), f"layer {tensor[0]} has other bits in '{tensor[1]}'"
