"""Every rank has a device, or the setting that does not give it one is refused by name."""

import pytest
import torch

from segue.errors import ConfigError
from segue.runner.ranks.devices import rank_devices

CPU = torch.device("cpu")


def test_ranks_on_the_cpu_share_it() -> None:
    assert rank_devices("cpu", 1) == (CPU,)
    assert rank_devices("cpu", 4) == (CPU,) * 4
    assert rank_devices("cpu, cpu", 2) == (CPU, CPU)


@pytest.mark.parametrize(
    ("device", "tp", "what"),
    [
        ("gpu", 1, "torch does not know"),
        ("cpu,cpu", 3, "names 2 devices, engine.tp is 3"),
        ("cuda:1", 2, "names 1 devices, engine.tp is 2"),
        ("cuda:0,cuda:0", 1, "names 2 devices, engine.tp is 1"),
        ("cpu,cuda:0", 2, "cpu and cuda devices"),
    ],
)
def test_devices_that_are_none_are_refused(device: str, tp: int, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        rank_devices(device, tp)
    assert refused.value.param == "device"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
@pytest.mark.parametrize("device", ["cuda", "cuda:0,cuda:1"])
def test_devices_that_are_not_there_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="torch sees no CUDA device here"):
        rank_devices(device, 2)
