"""Which device each rank of a worker computes on."""

import torch

from segue.errors import ConfigError


def rank_devices(device: str, tp: int) -> tuple[torch.device, ...]:
    """The devices of `engine.device`, one for each rank: `cpu`; `cuda` for the first ones that torch sees; or a list.

    A list may name a device more than once: ranks share it. Raises ConfigError where they cannot be had.
    """
    names = [name.strip() for name in device.split(",")]
    if tp > 1 and names == ["cuda"]:
        names = [f"cuda:{number}" for number in range(tp)]
    elif names == ["cpu"]:
        names *= tp
    if len(names) != tp:
        raise _refused(
            f"engine.device '{device}' names {len(names)} devices, engine.tp is {tp}; name one for each rank, or cuda"
        )
    try:
        devices = tuple(torch.device(name) for name in names)
    except RuntimeError as error:
        raise _refused(f"engine.device is '{device}', which torch does not know") from error
    if len(kinds := {one.type for one in devices}) > 1:
        raise _refused(f"engine.device names {' and '.join(sorted(kinds))} devices; ranks are all of one kind")
    if devices[0].type == "cuda":
        _require_cuda(device, devices)
    return devices


def use_device(device: torch.device) -> None:
    """This thread's work goes there: also what names no device, as kernels do."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)


def _require_cuda(named: str, devices: tuple[torch.device, ...]) -> None:
    if not torch.cuda.is_available():
        raise _refused(f"engine.device is '{named}', but torch sees no CUDA device here")
    if len(devices) > 1 and any(device.index is None for device in devices):
        raise _refused(f"engine.device '{named}' is a list; say cuda:0, cuda:1, ... in it, with numbers")
    count = torch.cuda.device_count()
    wanted = 1 + max(device.index or 0 for device in devices)
    if wanted > count:
        raise _refused(
            f"engine.device '{named}' with engine.tp {len(devices)} takes {wanted} CUDA devices, torch sees {count} "
            "here; ranks may share one if engine.device names it for each of them"
        )


def _refused(message: str) -> ConfigError:
    return ConfigError(message, param="device")
