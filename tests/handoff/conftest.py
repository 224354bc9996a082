"""Small checkpoints that the tests here share."""

from pathlib import Path

import pytest

from tests.support.checkpoints import lara_mini_config, llama_config, qwen3_config, write_checkpoint


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full attention, a sliding window of 23 past tokens, and recurrent layers."""
    folder = tmp_path_factory.mktemp("hybrid")
    write_checkpoint(lara_mini_config(), folder)
    return folder


@pytest.fixture(scope="session")
def sliding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full and sliding attention, no recurrent state."""
    folder = tmp_path_factory.mktemp("sliding")
    write_checkpoint(qwen3_config(), folder)
    return folder


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full attention only."""
    folder = tmp_path_factory.mktemp("dense")
    write_checkpoint(llama_config(), folder)
    return folder
