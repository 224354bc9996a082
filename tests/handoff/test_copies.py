"""Copies by policy of requests whose prompts other workers compute: none outlives its request, however that ends."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from decode_service.retraction.config import RetractionConfig
from segue.state.snapshot.config import SnapshotConfig
from tests.handoff.pair import alone, paired
from tests.handoff.test_moving import asking

pytestmark = pytest.mark.long


async def test_a_request_that_ends_with_the_token_of_its_recompute_leaves_no_copy(hybrid: Path, tmp_path: Path) -> None:
    # Whoever matters least is taken off at every step: each token of it comes with a recompute, the last one too.
    asked = [asking(0, 20, 8), replace(asking(1, 20, 200), priority=1)]
    forced = RetractionConfig(host_bytes=0, test_interval=1)
    copied = SnapshotConfig(folder=str(tmp_path), every_tokens=2)
    async with paired(hybrid, retraction=forced, snapshots=copied, max_len=256) as pair:
        found = await pair.ask(asked)
        await pair.emptied()
        status = await pair.decode.worker.status()
        assert status.snapshots.copied > 0
        async with asyncio.timeout(5):
            while await pair.decode.worker.snapshots.list():
                pass
    usual = await alone(hybrid, asked, max_len=256)
    assert [replace(one, logprobs=[]) for one in found] == [replace(one, logprobs=[]) for one in usual]
