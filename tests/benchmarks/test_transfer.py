"""The transfer benchmark moves what it says it moves, and gives no figure for bytes that arrived wrong."""

import pytest
import torch

from benchmarks.refusal import Refused
from benchmarks.transfer_sender import known_bytes
from benchmarks.transfer_ways import CopyWay, contiguous, rate, scattered
from kv_transfer.blocks import Blocks, byte_count, check_bounds, merge


class Damaging:
    """Copies, and then changes one byte."""

    def __init__(self, arena: torch.Tensor) -> None:
        self._arena, self._way = arena, CopyWay(arena)

    def fetch(self, blocks: Blocks) -> None:
        self._way.fetch(blocks)
        self._arena[int(blocks[-1, 1])] += 1


def test_scattered_pages_are_all_pages_once_and_hardly_any_are_neighbours() -> None:
    blocks = scattered(1 << 20, 4096, seed=3)
    check_bounds(blocks, 1 << 20, 1 << 20)
    assert byte_count(blocks) == 1 << 20
    assert len({*blocks[:, 0].tolist()}) == len({*blocks[:, 1].tolist()}) == 256
    assert len(merge(blocks)) > 240


@pytest.mark.parametrize("blocks", [contiguous(1 << 16), scattered(1 << 16, 4096, seed=1)])
def test_a_rate_is_given_only_for_bytes_that_arrived_right(blocks: Blocks) -> None:
    arena, source = torch.zeros(1 << 16, dtype=torch.uint8), known_bytes(1 << 16)
    assert rate(CopyWay(arena), arena, source, blocks, rounds=1, seconds_min=0.0) > 0
    with pytest.raises(Refused, match="arrived other than they were sent"):
        rate(Damaging(arena), arena, source, blocks, rounds=1, seconds_min=0.0)
