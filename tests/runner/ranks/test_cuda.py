"""Ranks on CUDA devices, one each or several on one: what they compute, move and bring back is what one rank does."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from segue.errors import ConfigError, RankLost
from segue.runner.ranks.devices import rank_devices
from segue.tokens import EmittedToken
from segue.wire import GenerateSpec
from tests.handoff.pair import Answer, paired
from tests.handoff.test_retraction import FORCED
from tests.runner.ranks.engines import answers, asking, engine
from tests.runner.ranks.test_lost_ranks import step_for_ever

pytestmark = pytest.mark.gpu

NEAR = 1e-3
LIMIT_S = 5.0
"""Ranks compile kernels in their first steps, and need not do so at the same moment."""
SHARED = "cuda:0,cuda:0"
DEVICES = [
    SHARED,
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs a CUDA device for each rank"),
    ),
]
TRANSPORTS = [
    "local",
    "grpc",
    pytest.param(
        "nixl", marks=pytest.mark.skipif(importlib.util.find_spec("nixl") is None, reason="NIXL is not installed")
    ),
]
ON_ONE: dict[str, object] = {"tp": 1, "device": "cuda"}


def on(devices: str) -> dict[str, object]:
    """Two ranks there."""
    return {"tp": 2, "device": devices}


def greedy(count: int = 5, output: int = 30) -> list[GenerateSpec]:
    return [
        replace(one, sampling=replace(one.sampling, temperature=0.0, presence_penalty=0.0, frequency_penalty=0.0))
        for one in asking(count, output)
    ]


def alike(found: Sequence[tuple[list[int], list[float]]], right: Sequence[tuple[list[int], list[float]]]) -> None:
    """The same tokens, each as likely. Where two are equally likely either may come, and nothing is compared behind."""
    assert len(found) == len(right)
    whole = 0
    for (tokens, logprobs), (others, expected) in zip(found, right, strict=True):
        assert len(tokens) == len(others)
        differing = [number for number, pair in enumerate(zip(tokens, others, strict=True)) if pair[0] != pair[1]]
        stop = differing[0] + 1 if differing else len(tokens)
        assert len(logprobs) == len(tokens)
        assert logprobs[:stop] == pytest.approx(expected[:stop], abs=NEAR)
        whole += not differing
    assert whole >= len(found) - 1


def emitted(tokens: Sequence[Sequence[EmittedToken]]) -> list[tuple[list[int], list[float]]]:
    known = [[one.logprob for one in row if one.logprob is not None] for row in tokens]
    return [([one.token_id for one in row], logprobs) for row, logprobs in zip(tokens, known, strict=True)]


def answered(given: Sequence[Answer]) -> list[tuple[list[int], list[float]]]:
    assert [one.error for one in given] == [None] * len(given)
    return [(one.tokens, one.logprobs) for one in given]


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("replay_length", [1, 8])
def test_two_ranks_put_out_what_one_does(hybrid: Path, devices: str, replay_length: int) -> None:
    """Second turns go on from what all ranks have left: first ones end on the grid, so their slots are donated."""
    first = [replace(one, sampling=replace(one.sampling, max_tokens=65 - len(one.prompt))) for one in greedy(3)]
    second: list[GenerateSpec] = []
    said = []
    for place in (ON_ONE, on(devices)):
        with engine(hybrid, replay_length=replay_length, **place) as built:
            turns = emitted(answers(built, first))
            second = second or [
                replace(one, prompt=(*one.prompt, *tokens, 5, 6, 7))
                for one, (tokens, _) in zip(first, turns, strict=True)
            ]
            said.append([*turns, *emitted(answers(built, second))])
            status = built.engine.status()
            assert any(hits.tokens for hits in status.cache.hits)
            assert (status.replay.folds_read > 0) == (replay_length > 1)
    alike(said[1], said[0])


@pytest.mark.parametrize("devices", DEVICES)
def test_ranks_have_a_region_each_where_they_compute(hybrid: Path, devices: str) -> None:
    with engine(hybrid, **on(devices)) as built:
        places = [region.device for region in built.storage.regions.tensors]
        assert places == list(rank_devices(devices, 2))
        answers(built, greedy(1, 4))
        # What the other rank computed lies where this one looks for it.
        ours, theirs = (rank.arena for rank in built.storage.ranks)
        assert ours.any()
        assert theirs.any()
        assert not torch.equal(ours.cpu(), theirs.cpu())


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (2, 2)], ids=str)
async def test_any_two_degrees_hand_over_a_whole_state(
    hybrid: Path, ranks: tuple[int, int], transport: str, devices: str
) -> None:
    """Digests are compared at every handoff."""
    asked = greedy(4, 12)
    with engine(hybrid, **ON_ONE) as built:
        right = emitted(answers(built, asked))
    prefill, decode = (ON_ONE if count == 1 else on(devices) for count in ranks)
    async with paired(
        hybrid, transports=transport, prefill=prefill, decode=decode, deterministic=False, max_len=256
    ) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        handoffs = (await pair.decode.worker.status()).transfers.count
    alike(answered(found), right)
    assert handoffs == len(asked)


@pytest.mark.parametrize("devices", DEVICES)
async def test_what_was_retracted_comes_back_on_both_ranks(hybrid: Path, devices: str) -> None:
    """With `verify` what each rank has is digested before and after."""
    asked = greedy(6, 40)
    both = on(devices)
    async with paired(hybrid, prefill=both, decode=both, deterministic=False, max_len=256) as pair:
        right = await pair.ask(asked)
    async with paired(hybrid, prefill=both, decode=both, deterministic=False, max_len=256, retraction=FORCED) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        seen = (await pair.decode.worker.status()).retraction
    alike(answered(found), answered(right))
    assert seen.by_test == seen.resumed > 5
    assert (seen.recomputed, seen.mismatched, seen.recomputed_tokens) == (0, 0, 0)


@pytest.mark.parametrize("devices", DEVICES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_lost_within_a_step_ends_the_step(hybrid: Path, devices: str, number: signal.Signals) -> None:
    """Also where the device waits in a sum, and the host for the device."""
    with engine(hybrid, rank_limit_s=LIMIT_S, **on(devices)) as built:
        assert built.crew is not None
        answers(built, greedy(1, 8))
        strike = f"import os, time; time.sleep(1); os.kill({built.crew.pids[0]}, {int(number)})"
        with subprocess.Popen([sys.executable, "-c", strike]):
            started = time.monotonic()
            with pytest.raises(RankLost):
                step_for_ever(built)
        assert time.monotonic() - started < LIMIT_S + 8
        with pytest.raises(RankLost, match="rank 1 of 2"):
            built.crew.lost.result(LIMIT_S + 3)


def test_a_rank_lost_between_steps_is_known(hybrid: Path) -> None:
    with engine(hybrid, rank_limit_s=LIMIT_S, **on(SHARED)) as built:
        assert built.crew is not None
        os.kill(built.crew.pids[0], signal.SIGKILL)
        with pytest.raises(RankLost, match="rank 1 of 2"):
            built.crew.lost.result(LIMIT_S + 3)
        with pytest.raises(RankLost):
            step_for_ever(built)


def test_more_ranks_than_devices_are_refused_with_both_numbers() -> None:
    count = torch.cuda.device_count()
    with pytest.raises(ConfigError, match=rf"engine.tp {count + 1} .* torch sees {count} "):
        rank_devices("cuda", count + 1)
    with pytest.raises(ConfigError, match="with numbers"):
        rank_devices("cuda,cuda", 2)
