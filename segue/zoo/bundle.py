"""The bundled folder: where it is, how it is prepared before training and filled after it; knows nothing of tensors.

`python -m segue.zoo.bundle prepare` writes tokenizer and config.json; `... install EXPORT` takes the weights of a run.
"""

import argparse
import shutil
from pathlib import Path

from segue.zoo.architecture import Architecture, write_config
from segue.zoo.tokenizer import write_tokenizer

BUNDLED_MODEL = Path(__file__).parent / "model"
WEIGHT_FILES = "model*.safetensors*"


def prepare(folder: Path) -> None:
    """Everything but the weights. Weights trained with another tokenizer do not fit the new one."""
    write_tokenizer(folder)
    write_config(Architecture(), folder)


def install(export: Path, folder: Path) -> None:
    """Replace the folder's weights by those of a training run's export."""
    for old in folder.glob(WEIGHT_FILES):
        old.unlink()
    for new in export.glob(WEIGHT_FILES):
        shutil.copyfile(new, folder / new.name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("prepare")
    commands.add_parser("install").add_argument("export", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "prepare":
        prepare(BUNDLED_MODEL)
    else:
        install(arguments.export, BUNDLED_MODEL)


if __name__ == "__main__":
    main()
