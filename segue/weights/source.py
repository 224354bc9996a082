"""A checkpoint's tensors, taken one by one by name; what is taken, missing or left over is accounted for exactly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from segue.errors import CheckpointError
from segue.weights.tensor_file import TensorFile

PREFIXES = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """How much of a checkpoint was taken so far."""

    tensors_taken: int
    tensors_total: int
    bytes_taken: int
    bytes_total: int


class WeightSource:
    """Tensors of all files under normalised names: a text model nested in a multimodal one looks like a plain one."""

    def __init__(self, files: Sequence[TensorFile], progress: Callable[[LoadProgress], None] = lambda _: None) -> None:
        """`progress` is called after every take, on the caller's thread.

        Raises CheckpointError when two tensors have one name.
        """
        self._progress = progress
        self._home: dict[str, tuple[TensorFile, str]] = {}
        for file in files:
            for stored_name in file.tensors:
                name = normalised(stored_name)
                if name in self._home:
                    raise CheckpointError(f"'{stored_name}' in {file.path} is a second tensor named '{name}'")
                self._home[name] = (file, stored_name)
        self._left = set(self._home)
        self._bytes_total = sum(tensor.byte_count for file in files for tensor in file.tensors.values())
        self._bytes_taken = 0

    def has(self, name: str) -> bool:
        """Whether the checkpoint has that tensor, taken or not."""
        return name in self._home

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor in its stored dtype, over mapped memory: convert or copy what is to be kept.

        Raises CheckpointError when it is missing or of another shape. A tensor is taken once.
        """
        if name not in self._home:
            raise CheckpointError(f"the checkpoint has no tensor '{name}', which its config.json calls for")
        assert name in self._left, f"'{name}' was taken twice"
        file, stored_name = self._home[name]
        stored = file.tensors[stored_name]
        if stored.shape != shape:
            raise CheckpointError(f"'{stored_name}' in {file.path} is {stored.shape}, config.json calls for {shape}")
        self._account(name)
        return file.read(stored_name)

    def leave(self, prefix: str) -> None:
        """Declares every tensor under a prefix as knowingly unused (a vision tower, a draft head)."""
        for name in [name for name in self._left if name.startswith(prefix)]:
            self._account(name)

    def finish(self) -> None:
        """Raises CheckpointError when tensors are left: the model would silently not be what was trained.

        One is tolerated: an output head that repeats a tied embedding bit for bit.
        """
        if HEAD in self._left and EMBEDDING in self._home and EMBEDDING not in self._left:
            if not self._same_bytes(HEAD, EMBEDDING):
                raise CheckpointError(
                    f"'{HEAD}' differs from '{EMBEDDING}', though config.json says that they are tied"
                )
            self._account(HEAD)
        if self._left:
            shown = ", ".join(f"'{name}'" for name in sorted(self._left)[:5])
            more = f" and {len(self._left) - 5} more" if len(self._left) > 5 else ""
            raise CheckpointError(f"the checkpoint has tensors that this model has no place for: {shown}{more}")

    def _account(self, name: str) -> None:
        self._left.remove(name)
        file, stored_name = self._home[name]
        self._bytes_taken += file.tensors[stored_name].byte_count
        taken, total = len(self._home) - len(self._left), len(self._home)
        self._progress(LoadProgress(taken, total, self._bytes_taken, self._bytes_total))

    def _same_bytes(self, one: str, other: str) -> bool:
        (file, stored), (other_file, other_stored) = self._home[one], self._home[other]
        tensor, other_tensor = file.tensors[stored], other_file.tensors[other_stored]
        alike = (tensor.dtype, tensor.shape) == (other_tensor.dtype, other_tensor.shape)
        return alike and file.raw(stored) == other_file.raw(other_stored)


def normalised(stored_name: str) -> str:
    """The name without the nesting of a multimodal checkpoint."""
    for nested, plain in PREFIXES:
        if stored_name.startswith(nested):
            return plain + stored_name.removeprefix(nested)
    return stored_name
