"""The model that these tests run."""

from pathlib import Path

import pytest

from tests.support.checkpoints import lara_mini_config, write_checkpoint


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full attention, a sliding window of 23 past tokens, and recurrent layers."""
    folder = tmp_path_factory.mktemp("hybrid")
    write_checkpoint(lara_mini_config(), folder)
    return folder
