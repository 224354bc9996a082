"""Second turns, a few small ones: what was decoded is reused, nothing changes, and a difference would be seen."""

import dataclasses
import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.conversations import Output, attached
from benchmarks.hosted import hosted
from benchmarks.random_model import write_checkpoint
from benchmarks.refusal import Refused
from benchmarks.reuse import differ
from segue.config import EngineConfig

SMALL = ["--prompts", "3", "--prompt", "230", "--output", "150", "--turn", "8", "--window", "40"]


@pytest.mark.long
@pytest.mark.parametrize("role", ["separated", pytest.param("both", marks=pytest.mark.long)])
@pytest.mark.parametrize("floor", ["on", pytest.param("off", marks=pytest.mark.long)])
def test_a_second_turn_is_resumed_in_what_the_first_decoded(
    role: str, floor: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reuse", "--page", "32", "--interval", "64", "--role", role, "--floor", floor, *SMALL]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])["figures"]
    assert figures["reused_prompts"] == 3
    assert figures["kl_nonzero"] == figures["checkpoints_evicted"] == 0
    positions = figures["prompt_and_resumed_tokens"]
    assert [resumed for _, resumed in positions] == [(tokens + 149) // 64 * 64 for tokens, _ in positions]
    assert figures["reused_tokens"] == sum(resumed for _, resumed in positions)
    assert figures["reused_tokens"] + figures["recomputed_tokens"] == sum(tokens + 150 for tokens, _ in positions)
    if floor == "on":
        assert figures["prompt_region_reused"] == 3
        # Two pages of the window and one that they begin in, at most.
        assert 0 < figures["floor_tokens_mean"] <= figures["floor_tokens_max"] <= 3 * 32
    else:
        assert figures["floor_tokens_max"] == 0


def test_the_last_bit_of_one_alternative_makes_a_difference() -> None:
    one = Output([5], [-0.5], [((5, -0.5), (6, -1.5))])
    assert not differ(one, Output([5], [-0.5], [((5, -0.5), (6, -1.5))]))
    assert differ(one, dataclasses.replace(one, tops=[((5, -0.5), (6, -1.5000000000000002))]))
    assert differ(one, dataclasses.replace(one, tokens=[6]))


async def test_a_request_that_is_not_taken_gives_no_figure(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path, window=40, max_len=128, hidden=32)
    config = EngineConfig(model=model, threads=1, max_running=2)
    async with hosted(config, separated=False) as workers, attached(workers.address) as conversations:
        with pytest.raises(Refused, match=r"request 1 was not taken: .* serves at most 128"):
            await conversations.begin([5] * 120, 20)
        answer = await conversations.end(await conversations.begin([5] * 100, 20))
        assert len(answer.tokens) == len(answer.logprobs) == len(answer.tops) == 20
