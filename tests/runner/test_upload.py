"""Arrays that go to a device in one copy are there what they were, each aligned like a tensor of its own."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from segue.runner.upload import pack, packed_bytes, unpack, upload


def arrays(count: int) -> list[npt.NDArray[Any]]:
    """Of three widths, as many of each."""
    random = np.random.default_rng(count)
    return [
        random.integers(1 << 40, size=count),
        random.integers(1 << 20, size=count, dtype=np.int32),
        random.integers(2, size=count).astype(np.bool_),
    ]


@pytest.mark.parametrize("count", [1, 7, 8, 16, 33, 200])
def test_what_was_packed_is_unpacked(count: int) -> None:
    given = arrays(count)
    packed = torch.full((packed_bytes(given),), 0xFF, dtype=torch.uint8)
    pack(given, packed)
    found = unpack(packed, given)
    assert [one.tolist() for one in found] == [one.tolist() for one in given]
    assert [one.dtype for one in found] == [torch.int64, torch.int32, torch.bool]
    assert not any((one.data_ptr() - packed.data_ptr()) % 64 for one in found)


def test_on_the_cpu_nothing_is_copied() -> None:
    given = arrays(5)
    found = upload(given, torch.device("cpu"))
    assert [one.data_ptr() for one in found] == [one.ctypes.data for one in given]
    assert [one.dtype for one in found] == [torch.int64, torch.int32, torch.bool]
