"""Small checkpoints of one model, with different weights."""

from pathlib import Path

import pytest

from tests.support.checkpoints import lara_mini_config, write_checkpoint


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All components: full attention, a sliding window, and recurrent layers."""
    return write_checkpoint(lara_mini_config(), tmp_path_factory.mktemp("model")).folder


@pytest.fixture(scope="session")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as somebody else trained it."""
    return write_checkpoint(lara_mini_config(), tmp_path_factory.mktemp("other"), seed=1).folder
