"""A cached prefix in 8 bits gives the bits of a computed one, because codes and scales are kept and found together."""

from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PretrainedConfig

from segue.state.spec import ComponentName
from tests.engine.test_reuse import Bench, bench, cold, tokens
from tests.support.checkpoints import lara_mini_config, llama_config, qwen3_config, write_checkpoint

FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "lara_mini": lara_mini_config,
    "llama": llama_config,
    "qwen3 with sliding layers": qwen3_config,
}
PROMPT = tokens(200)


@pytest.fixture(
    scope="module",
    # The hybrid has every component that the others have.
    params=[name if name == "lara_mini" else pytest.param(name, marks=pytest.mark.long) for name in FAMILIES],
)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(FAMILIES[request.param](), tmp_path_factory.mktemp("model")).folder


def eight_bit(folder: Path, **settings: object) -> Bench:
    return bench(folder, kv_dtype="fp8", **settings)


@pytest.mark.long
@pytest.mark.parametrize("page_tokens", [5, *(pytest.param(size, marks=pytest.mark.long) for size in (1, 16))])
def test_a_reused_prefix_is_told_from_a_computed_one_by_nothing(folder: Path, page_tokens: int) -> None:
    settings: dict[str, object] = {"page_tokens": page_tokens, "track_interval": 0, "state_bytes": 32 << 20}
    prompt = tokens(400)
    engine = eight_bit(folder, **settings)
    first, _ = engine.ask(prompt)
    again, reused = engine.ask(prompt)
    assert reused >= 320
    assert again == first == eight_bit(folder, prefix_cache=False).ask(prompt)[0]
    assert first != cold(folder, prompt), "8 bits changed not even a logprob"


@pytest.mark.long
def test_a_second_turn_reuses_what_was_decoded(folder: Path) -> None:
    engine = eight_bit(folder)
    output, _ = engine.ask(PROMPT, output=100)
    turn = [*PROMPT, *(token.token_id for token in output), *tokens(10, start=3)]
    second, reused = engine.ask(turn)
    assert reused >= 192
    assert second == eight_bit(folder, prefix_cache=False).ask(turn)[0]


def test_a_cached_prefix_that_lost_its_scales_is_seen(folder: Path) -> None:
    for component in (ComponentName.FULL, ComponentName.WINDOW):
        engine = eight_bit(folder)
        if component not in engine.built.storage.layouts:
            continue
        first, _ = engine.ask(PROMPT)
        for field in engine.built.storage.layouts[component].fields:
            if field.tensor.name in ("k_scale", "v_scale"):
                engine.built.storage.view(field.tensor.layer, field.tensor.name).zero_()
        again, reused = engine.ask(PROMPT)
        assert reused >= 192
        assert again != first
