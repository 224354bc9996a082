"""From a model folder on disk to a built model; joins opening, taking and building, and does no more."""

from collections.abc import Callable
from pathlib import Path

from segue.models.options import BuildOptions
from segue.models.registry import build_model
from segue.runner.context import Model
from segue.weights.folder import ModelFolder
from segue.weights.source import LoadProgress, WeightSource


def load_model(path: Path, options: BuildOptions, progress: Callable[[LoadProgress], None] = lambda _: None) -> Model:
    """The folder's model; `progress` is called after every tensor.

    Raises CheckpointError naming the file, tensor or setting that cannot be used.
    """
    folder = ModelFolder.open(path)
    return build_model(folder.config, WeightSource(folder.files, progress), options)
