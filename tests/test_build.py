"""Joining a model with pools and scheduler: settings that do not match still serve every request they can."""

from pathlib import Path

import pytest
import torch

from deploy.settings import bundled_model
from segue.build import assemble, load_engine
from segue.config import EngineConfig
from segue.errors import ConfigError
from segue.ids import Handle
from segue.runner.context import StepContext
from segue.state.spec import ComponentName, DType, ModelState, StateTensor
from segue.weights.folder import ModelFolder
from segue.weights.generation import GenerationDefaults
from tests.support.policies import spec


class SlidingModel:
    """One full and one sliding layer of the smallest size; computes nothing."""

    state = ModelState.of(
        StateTensor(layer, name, component, 1, (2,), DType.FLOAT32, window)
        for layer, (component, window) in enumerate([(ComponentName.FULL, None), (ComponentName.WINDOW, 127)])
        for name in ("k", "v")
    )
    device = torch.device("cpu")
    vocab_size = 100
    max_position = 4096

    def forward(self, step: StepContext) -> torch.Tensor:
        raise NotImplementedError


def test_a_chunk_larger_than_a_step_does_not_make_a_long_prompt_unservable() -> None:
    config = EngineConfig(model=Path(), max_running=1, page_tokens=64, step_tokens=256, chunk_tokens=512)
    built = assemble(config, SlidingModel(), name="sliding", generation=GenerationDefaults(eos_token_ids=(1,)))
    built.engine.submit(spec("long", 4000, max_tokens=96), Handle(1))
    assert built.engine.status().waiting == 1


def test_a_type_that_only_stores_numbers_is_none_to_compute_in() -> None:
    folder = ModelFolder.open(bundled_model())
    with pytest.raises(ConfigError, match=r"engine\.dtype is 'float8_e4m3'; known are float32, bfloat16, float16"):
        load_engine(EngineConfig(model=folder.path, dtype="float8_e4m3"), folder)
