"""The measurement of tree and scheduler, on small ones: figures for what it says, none for what cannot be right."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.scripted import scripted_engine, scripted_spec
from segue.cache.shape import CacheShape
from segue.ids import Handle
from segue.state.spec import ComponentName

STEP = ["--running", "4", "--steps", "20"]


@pytest.mark.long
def test_it_gives_a_time_for_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "--prompt", "640", "--nodes", "8", "--rounds", "1", *STEP]) == 0
    figures = json.loads(capsys.readouterr().out)["figures"]
    tree = {"match_ms", "match_with_keys_ms", "publish_ms", "evict_ms"}
    assert set(figures) == tree | {"decode_step_ms", "decode_plan_ms", "decode_commit_ms"}
    assert all(figure >= 0 for figure in figures.values())


def test_a_prompt_that_cannot_be_resumed_gives_no_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "--prompt", "64", "--nodes", "8", "--rounds", "1", *STEP]) == 1
    assert "policy gives no figure: no checkpoint was taken" in capsys.readouterr().err


def test_the_engine_without_tensors_uses_all_of_its_policy() -> None:
    shape = CacheShape(page_tokens=64, full=True, window=100, recurrent=True, grid=64, interval=64)
    engine = scripted_engine(shape, running=2, max_len=400, units=dict.fromkeys(ComponentName, 40))
    prompt = list(range(150))
    for name in ("first", "second"):
        engine.submit(scripted_spec(name, prompt, 100), Handle(len(name)))
        while (record := engine.launch()) is not None:
            ended = engine.commit(record).ended
        engine.check()
    assert ended[0].usage.cached_tokens == 128
    assert ended[0].usage.completion_tokens == 100
    # At 128 of the prompt, and while decoding at 192; the second time both are there already.
    assert engine.status().cache.checkpoints_taken == 2
