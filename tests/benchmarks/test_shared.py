"""Prompts that begin alike, a few of them: the cache finds what the oracle does, and says no more than it found."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.random_model import write_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As small as a model of all components may be: what is found again does not depend on its size."""
    return write_checkpoint(tmp_path_factory.mktemp("model"), window=63, max_len=4096, hidden=32)


def figures_of(model: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    chat = ["--workload", "chat", "--scale", "0.1", "--clients", "2", "--output", "4"]
    assert main(["shared", "--model", str(model), "--state-mib", "64", *chat, *arguments]) == 0
    figures: dict[str, float] = json.loads(capsys.readouterr().out)["figures"]
    return figures


def test_with_memory_to_spare_the_cache_is_as_good_as_the_oracle(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = figures_of(model, [], capsys)
    assert figures["requests"] == 18
    assert 0 < figures["hit_rate"] == figures["oracle_hit_rate"] <= figures["clairvoyant_hit_rate"]
    assert figures["tokens_per_s"] > 0
    assert 0 < figures["ttft_mean_ms"] <= figures["e2e_mean_ms"]


def test_a_conversation_goes_on_where_its_donated_state_stands(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(model, ["--strategy", "no_buffer"], capsys)
    assert 0 < figures["hit_rate"] == figures["oracle_hit_rate"] < figures["clairvoyant_hit_rate"]
