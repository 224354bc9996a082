"""Prompts that begin alike, a few of them: the cache finds what the oracle does, and says no more than it found."""

import json

import pytest

from benchmarks.__main__ import main


def figures_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, float]:
    assert main(["shared", "--output", "4", *arguments]) == 0
    figures: dict[str, float] = json.loads(capsys.readouterr().out)["figures"]
    return figures


def test_with_memory_to_spare_the_cache_is_as_good_as_the_oracle(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(["--workload", "chat", "--scale", "0.1", "--clients", "2"], capsys)
    assert figures["requests"] == 18
    assert 0 < figures["hit_rate"] == figures["oracle_hit_rate"] <= figures["clairvoyant_hit_rate"]
    assert figures["tokens_per_s"] > 0
    assert 0 < figures["ttft_mean_ms"] <= figures["e2e_mean_ms"]


def test_a_conversation_goes_on_where_its_donated_state_stands(capsys: pytest.CaptureFixture[str]) -> None:
    figures = figures_of(["--workload", "chat", "--scale", "0.1", "--clients", "2", "--strategy", "no_buffer"], capsys)
    assert 0 < figures["hit_rate"] == figures["oracle_hit_rate"] < figures["clairvoyant_hit_rate"]
