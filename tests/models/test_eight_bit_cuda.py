"""With keys and values in 8 bits a CUDA device gives the CPU's logits, but for codes that fall the other way."""

from pathlib import Path

import pytest
import torch

from segue.models.options import BuildOptions
from segue.runner.context import Model
from segue.state.spec import DType
from segue.weights.load import load_model
from tests.models.test_cuda import BUNDLED_MODEL, TOKENS, some_tokens
from tests.support.step_contexts import Bench, Part

pytestmark = pytest.mark.gpu

# Numbers that two devices compute in another order may fall to neighbouring codes, an eighth apart at most. Logits have
# a spread of about four, 8 bits move them by 0.04 (root mean square), and such codes by 0.0015, by 0.04 at most.
ROOT_MEAN_SQUARE_MAX = {DType.FLOAT32: 0.01, DType.BFLOAT16: 0.1}
ERROR_MAX = 0.3


def model_on(device: str) -> Model:
    return load_model(Path(BUNDLED_MODEL), BuildOptions(kv_dtype=DType.FLOAT8_E4M3, device=torch.device(device)))


def test_rows_of_a_mixed_step_have_the_logits_of_the_cpu() -> None:
    found = []
    for device in ("cuda", "cpu"):
        model = model_on(device)
        texts = [some_tokens(model, seed) for seed in range(2)]
        bench = Bench(model)
        first, second = (bench.start(text) for text in texts)
        bench.run(Part(first, 130), Part(second, 64))
        bench.run(Part(first, 1, decode=True), Part(second, 200))
        for _ in range(60):
            bench.run(Part(first, 1, decode=True), Part(second, 1, decode=True))
        found.append(torch.cat(first.logits + second.logits).cpu())
    error = found[0] - found[1]
    assert float(error.square().mean().sqrt()) < ROOT_MEAN_SQUARE_MAX[DType.FLOAT32]
    assert float(error.abs().max()) < ERROR_MAX


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_decoded_tokens_have_the_logits_of_extended_ones(dtype: DType) -> None:
    device = torch.device("cuda")
    model = load_model(BUNDLED_MODEL, BuildOptions(dtype=dtype, kv_dtype=DType.FLOAT8_E4M3, device=device))
    tokens = some_tokens(model, 3)
    bench = Bench(model)
    whole = bench.extend(bench.start(tokens), TOKENS)
    other = bench.start(tokens)
    apart = torch.cat([bench.extend(other, 100), bench.decode(other, TOKENS - 100)])
    error = (whole - apart).float()
    assert float(error.square().mean().sqrt()) < ROOT_MEAN_SQUARE_MAX[dtype]
