"""The measurement of backups, on little memory: rates for what came back as it was, none for what cannot be."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.backup import Placement
from benchmarks.state_shapes import STATE_SHAPES
from segue.state.spec import ComponentName, uses_ssm_state

LITTLE = ["--bytes", str(8 << 20), "--requests", "2", "--rounds", "2"]


def test_it_gives_rates_of_every_placement_and_the_worst_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", *LITTLE, "--shapes", "small_hybrid"]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    shapes = figures.pop("shapes")
    assert set(shapes) == {"small_hybrid"}
    rates = [shapes["small_hybrid"][placement.value] for placement in Placement]
    assert all(set(rate) == set(figures) for rate in rates)
    for way in ("save", "restore"):
        assert figures[f"{way}_ratio"] == min(rate[f"{way}_ratio"] for rate in rates) > 0
    assert (7 << 20) < shapes["small_hybrid"]["bytes"] <= (8 << 20)


def test_requests_that_are_too_small_for_their_model_give_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backup", *LITTLE, "--shapes", "large_hybrid"]) == 1
    assert "backup gives no figure: 4194304 bytes are too few" in capsys.readouterr().err


def test_the_shapes_are_those_of_the_models_that_they_are_named_for() -> None:
    large = STATE_SHAPES["large_hybrid"].state()
    full, recurrent = large.component(ComponentName.FULL), large.component(ComponentName.RECURRENT)
    assert full is not None
    assert recurrent is not None
    # Qwen3.5-35B-A3B keeps 20,480 bytes for each token and 64.4 MB for each sequence.
    assert sum(tensor.groups * tensor.group_bytes for tensor in full.tensors) == 20_480
    assert sum(tensor.groups * tensor.group_bytes for tensor in recurrent.tensors) == 64_389_120
    assert [name for name, shape in STATE_SHAPES.items() if not uses_ssm_state(shape.state())] == ["sliding"]
