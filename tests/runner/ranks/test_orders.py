"""Rank 0 alone decides: every other rank carries out the same steps, in the same order, and no others."""

import sys
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from decode_service.retraction.config import RetractionConfig
from decode_service.retraction.parts import retraction_parts
from segue.build import assemble, open_model
from segue.runner.context import Model, StepContext
from segue.runner.ranks.orders import COMPONENTS, Order, decode_allocation, encode_allocation, encode_step
from segue.state.spec import ComponentName
from segue.weights.folder import ModelFolder
from tests.handoff.pair import engine_config
from tests.runner.ranks.engines import SMALL, answers, asking
from tests.runner.ranks.recorded_rank import line


class RecordedModel:
    """Rank 0's, with a hash of every step that it was given."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.state, self.device = model.state, model.device
        self.vocab_size, self.max_position = model.vocab_size, model.max_position
        self.steps: list[str] = []

    def forward(self, step: StepContext) -> Tensor:
        self.steps.append(line(Order.COMPUTE, encode_step(step)))
        return self._model.forward(step)


@pytest.mark.long
@pytest.mark.parametrize("tp", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_ranks_take_the_steps_of_rank_0_in_its_order(hybrid: Path, tmp_path: Path, tp: int) -> None:
    """With retraction, cache hits and rings, all of which rank 0 decides upon."""
    config = engine_config(hybrid, "both", **{**SMALL, "tp": tp, "replay_length": 8})
    folder = ModelFolder.open(hybrid)
    command = [sys.executable, "-m", "tests.runner.ranks.recorded_rank", str(tmp_path)]
    model, crew = open_model(config, folder, rank_command=command)
    assert crew is not None
    with crew:
        recorded = RecordedModel(model)
        retraction = retraction_parts(
            RetractionConfig(host_bytes=8 << 20, verify=True, test_interval=3), config.page_tokens
        )
        built = assemble(config, recorded, name="small", generation=folder.generation, retraction=retraction, crew=crew)
        answers(built, asking())
        answers(built, asking())
        status = built.engine.status()
        crew.broadcast(Order.SETTLE)
        crew.wait_done(Order.SETTLE)
    assert status.retraction.resumed > 5
    assert status.replay.folds_read > 5
    assert any(hits.tokens for hits in status.cache.hits)
    for rank in range(1, tp):
        carried_out = (tmp_path / str(rank)).read_text().splitlines(keepends=True)
        assert [one for one in carried_out if one.startswith(Order.COMPUTE.name)] == recorded.steps
        assert carried_out[-1].startswith(Order.SETTLE.name)
        assert sum(one.startswith(Order.FOLD.name) for one in carried_out) == status.replay.folds_read
    assert len(recorded.steps) == status.steps > 50


def test_every_rank_finds_its_own_handle_in_an_allocation() -> None:
    counts = dict.fromkeys(COMPONENTS, 7)
    handles = [np.array([rank, 10 * rank]) for rank in (1, 2, 3)]
    values = encode_allocation(counts, 5, 8, handles)
    for rank in (1, 2, 3):
        *facts, handle = decode_allocation(values, rank)
        assert facts == [counts, 5, 8]
        assert handle is not None
        assert handle.tolist() == [rank, 10 * rank]


def test_an_allocation_of_a_model_without_some_component_has_no_units_of_it() -> None:
    values = encode_allocation({ComponentName.FULL: 7}, 0, 1, [])
    assert decode_allocation(values, 1) == ({**dict.fromkeys(COMPONENTS, 0), ComponentName.FULL: 7}, 0, 1, None)
