"""What a training run needs to go on where it stopped, on disk; and the smaller form that travels off the machine."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from segue.zoo.optimizer import OptimizerState, initial_state

CHECKPOINT_FILE = "checkpoint.pt"
PART_COUNT = 3


@dataclass(frozen=True, slots=True)
class Progress:
    step: int  # also where the data continues
    seconds: float  # of training, without start-up


def save_checkpoint(folder: Path, state: OptimizerState, progress: Progress) -> None:
    tensors = {
        "flat": state.flat,
        "moment1": state.moment1,
        "moment2": state.moment2,
        "average": state.average,
        "step": state.step,
        "progress": torch.tensor([progress.step, progress.seconds], dtype=torch.float64),
    }
    folder.mkdir(parents=True, exist_ok=True)
    # Renamed into place: a run that is cut off while writing leaves the checkpoint before it.
    torch.save(tensors, folder / "writing.pt")
    os.replace(folder / "writing.pt", folder / CHECKPOINT_FILE)


def load_checkpoint(folder: Path, device: torch.device) -> tuple[OptimizerState, Progress] | None:
    path = folder / CHECKPOINT_FILE
    if not path.exists():
        return None
    tensors: dict[str, Tensor] = torch.load(path, map_location=device, weights_only=True)
    step, seconds = tensors.pop("progress").tolist()
    return OptimizerState(**tensors), Progress(int(step), seconds)


def write_parts(folder: Path, state: OptimizerState, progress: Progress) -> None:
    """The fp32 parameters alone, in files small enough to carry anywhere."""
    for number, part in enumerate(state.flat.chunk(PART_COUNT)):
        torch.save(
            {
                "part": part.clone().cpu(),
                "progress": torch.tensor([progress.step, progress.seconds], dtype=torch.float64),
            },
            folder / f"part{number}.pt",
        )


def read_parts(folder: Path, device: torch.device) -> tuple[OptimizerState, Progress]:
    """Start again from `write_parts`, with moments at zero."""
    parts = [torch.load(folder / f"part{number}.pt", weights_only=True) for number in range(PART_COUNT)]
    step, seconds = parts[0]["progress"].tolist()
    return initial_state(torch.cat([part["part"] for part in parts]).to(device)), Progress(int(step), seconds)
