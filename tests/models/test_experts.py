"""Mixtures of experts that a config describes and no model can be."""

from pathlib import Path

import pytest

from segue.errors import CheckpointError
from segue.models.options import BuildOptions
from segue.weights.load import load_model
from tests.support.checkpoints import lara_mini_config, write_checkpoint


@pytest.mark.parametrize("chosen", [0, 3])
def test_a_token_that_takes_no_expert_or_more_than_there_are_is_refused(chosen: int, tmp_path: Path) -> None:
    folder = write_checkpoint(lara_mini_config(experts=2, num_experts_per_tok=chosen), tmp_path).folder
    with pytest.raises(CheckpointError, match=f"num_experts_per_tok is {chosen}, the model has 2 experts"):
        load_model(folder, BuildOptions())
