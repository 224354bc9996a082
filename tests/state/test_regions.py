"""Several regions are one run of offsets, and no run of bytes goes from one region to the next."""

import pytest
import torch

from segue.state.regions import Regions


def test_every_byte_of_every_region_has_an_offset() -> None:
    tensors = [torch.arange(size, dtype=torch.uint8) for size in (5, 1, 7)]
    regions = Regions(tensors)
    for start, tensor in zip(regions.starts, tensors, strict=True):
        for first in range(tensor.numel()):
            for stop in range(first, tensor.numel() + 1):
                piece = regions.piece(start + first, stop - first)
                assert torch.equal(piece, tensor[first:stop])
                assert piece.numel() == 0 or piece.data_ptr() == tensor.data_ptr() + first
    assert regions.bytes == regions.starts[-1] + 7


def test_the_end_of_one_region_is_not_the_beginning_of_the_next() -> None:
    regions = Regions([torch.zeros(8, dtype=torch.uint8) for _ in range(3)])
    for start, after in zip(regions.starts, regions.starts[1:], strict=False):
        assert start + 8 < after


@pytest.mark.parametrize(("offset", "length"), [(0, 9), (7, 2), (9, 1), (71, 2), (72, 9), (80, 1), (-1, 1)])
def test_bytes_that_are_in_no_region_are_our_mistake(offset: int, length: int) -> None:
    regions = Regions([torch.zeros(8, dtype=torch.uint8) for _ in range(2)])
    assert regions.starts == (0, 72)
    with pytest.raises(AssertionError):
        regions.piece(offset, length)


def test_memory_of_the_host_is_settled_at_once() -> None:
    regions = Regions([torch.zeros(8, dtype=torch.uint8)])
    assert regions.cuda_devices == ()
    regions.settle()
