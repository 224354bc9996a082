"""With keys and values in 8 bits every family stays near its exact logits, and each of the four tensors counts."""

import random
from collections.abc import Callable

import pytest
import torch
from transformers import PretrainedConfig

from segue.models.options import BuildOptions
from segue.runner.context import Model
from segue.state.layout import Shard, layouts
from segue.state.spec import ComponentName, DType
from segue.weights.load import load_model
from tests.support.checkpoints import (
    FULL,
    VOCAB,
    Checkpoint,
    lara_mini_config,
    llama_config,
    qwen3_config,
    write_checkpoint,
)
from tests.support.step_contexts import Bench, Part

CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "lara_mini": lara_mini_config,
    "llama": llama_config,
    "qwen3": lambda: qwen3_config(FULL, FULL),
    "qwen3 with sliding layers": qwen3_config,
}
EIGHT_BIT = DType.FLOAT8_E4M3
TOKENS = 131
# The logits' own spread is 0.7. Four binary digits a number: measured 0.017 to 0.026, at most 0.15.
ROOT_MEAN_SQUARE_MAX = 0.04
ERROR_MAX = 0.25


@pytest.fixture(scope="module", params=CONFIGS)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return write_checkpoint(CONFIGS[request.param](), tmp_path_factory.mktemp("model"))


def some_tokens(seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB), k=TOKENS)


def built(checkpoint: Checkpoint, kv_dtype: DType | None = EIGHT_BIT) -> Model:
    return load_model(checkpoint.folder, BuildOptions(kv_dtype=kv_dtype))


@pytest.mark.parametrize("page_tokens", [1, 64, pytest.param(16, marks=pytest.mark.long)])
def test_logits_stay_near_those_of_transformers(checkpoint: Checkpoint, page_tokens: int) -> None:
    bench = Bench(built(checkpoint), page_tokens=page_tokens, units=420)
    texts = [some_tokens(seed) for seed in range(2)]
    first, second = (bench.start(text) for text in texts)
    bench.run(Part(first, 1))
    bench.run(Part(first, 1, decode=True), Part(second, 70))
    bench.run(Part(second, 1, decode=True), Part(first, 67))
    for _ in range(60):
        bench.run(Part(first, 1, decode=True), Part(second, 1, decode=True))
    for run, text in zip((first, second), texts, strict=True):
        error = torch.cat(run.logits) - checkpoint.logits(text)[: run.computed]
        assert 0 < float(error.square().mean().sqrt()) < ROOT_MEAN_SQUARE_MAX
        assert float(error.abs().max()) < ERROR_MAX


def test_losing_any_tensor_of_the_state_is_seen(checkpoint: Checkpoint) -> None:
    model, text = built(checkpoint), some_tokens(0)
    whole = Bench(model)
    expected = whole.extend(whole.start(text), TOKENS)[-1]
    for component in model.state.components:
        for tensor in component.tensors:
            bench = Bench(model)
            run = bench.start(text)
            bench.extend(run, TOKENS - 1)
            bench.zero(run, (tensor.layer, tensor.name))
            moved = float((bench.decode(run, 1)[0] - expected).abs().max())
            assert moved > ERROR_MAX, f"without {tensor.name} of layer {tensor.layer} logits move by {moved}"


def test_keys_and_values_have_scales_beside_them_and_recurrent_state_is_as_it_was(checkpoint: Checkpoint) -> None:
    plain, eight_bit = (built(checkpoint, kv_dtype).state for kv_dtype in (None, EIGHT_BIT))
    assert [spec.name for spec in plain.components] == [spec.name for spec in eight_bit.components]
    for ours, theirs in zip(eight_bit.components, plain.components, strict=True):
        if ours.name is ComponentName.RECURRENT:
            assert ours == theirs
            continue
        shapes = {tensor.name: (tensor.dtype, tensor.shape) for tensor in ours.tensors}
        dim = theirs.tensors[0].shape
        assert shapes == {
            "k": (EIGHT_BIT, dim),
            "k_scale": (DType.FLOAT32, (1,)),
            "v": (EIGHT_BIT, dim),
            "v_scale": (DType.FLOAT32, (1,)),
        }
        assert len(ours.tensors) == 2 * len(theirs.tensors)


@pytest.mark.parametrize(("head_dim", "share"), [(64, 68 / 256), (128, 132 / 512)])
def test_a_page_is_about_a_quarter_as_large(
    head_dim: int, share: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = write_checkpoint(llama_config(head_dim=head_dim), tmp_path_factory.mktemp("model"))
    (plain,), (eight_bit,) = (layouts(built(checkpoint, one).state, 64, Shard()) for one in (None, EIGHT_BIT))
    assert eight_bit.unit_bytes == plain.unit_bytes * share
