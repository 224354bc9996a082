"""The measurement of the prefix tree, on a small one: figures for what it says, none for what cannot be right."""

import json

import pytest

from benchmarks.__main__ import main


def test_it_gives_a_time_for_each_of_match_publish_and_evict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "--prompt", "640", "--nodes", "8", "--rounds", "2"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    assert set(figures) == {"match_ms", "match_with_keys_ms", "publish_ms", "evict_ms"}
    assert all(figure >= 0 for figure in figures.values())


def test_a_prompt_that_cannot_be_resumed_gives_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "--prompt", "64", "--nodes", "8", "--rounds", "1"]) == 1
    assert "policy gives no figure: no checkpoint was taken" in capsys.readouterr().err
