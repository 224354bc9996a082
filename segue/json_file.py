"""Reads one JSON object from a file of a model folder; knows nothing of what it means."""

import json
from collections.abc import Mapping
from pathlib import Path

from segue.errors import CheckpointError


def read_json_object(path: Path) -> Mapping[str, object]:
    """The file's object. Raises CheckpointError that names the file when it is unreadable or something else."""
    try:
        parsed = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return parsed
