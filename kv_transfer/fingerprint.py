"""What two processes must agree on before state passes between them; names differences, moves nothing."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segue.errors import FingerprintMismatch
from segue.state.layout import UnitLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Identity of a served model and of the form its state has in memory and on the wire.

    `components` describes each component over all tensor-parallel ranks. How many those are is no part of the identity:
    the transfer plan maps between unlike degrees.
    `window` is None for a model without such layers.
    """

    model_config: str
    weights: str
    compute_dtype: str
    page_tokens: int
    window: int | None
    kernel_chunk: int
    components: tuple[str, ...]
    protocol_version: int

    @property
    def hex(self) -> str:
        """Stable digest of the identity: equal in two processes if and only if no field differs."""
        return _digest(self.fields())

    def fields(self) -> dict[str, str]:
        """Every field of the identity by name, as text: what a refusal shows."""
        named = {
            "model_config": self.model_config,
            "weights": self.weights,
            "compute_dtype": self.compute_dtype,
            "page_tokens": str(self.page_tokens),
            "window": str(self.window),
            "kernel_chunk": str(self.kernel_chunk),
            "protocol_version": str(self.protocol_version),
        }
        for text in self.components:
            named[f"component {text.split(':', 1)[0]}"] = text
        return named


def require_equal(ours: Fingerprint, theirs: Fingerprint) -> None:
    """Raises FingerprintMismatch that names every differing field with both values."""
    require_equal_fields(ours.fields(), theirs.fields())


def require_equal_fields(mine: dict[str, str], other: dict[str, str]) -> None:
    """The same for fingerprints that came over the wire as text."""
    differing = [name for name in mine | other if mine.get(name) != other.get(name)]
    if differing:
        parts = [f"{name}: ours {mine.get(name, 'absent')}, theirs {other.get(name, 'absent')}" for name in differing]
        raise FingerprintMismatch(f"the two processes do not serve the same thing: {'; '.join(parts)}")


def describe_layouts(layouts: Sequence[UnitLayout]) -> tuple[str, ...]:
    """One line per component: tokens a unit, head groups of all ranks, and every tensor with its place and type.

    Order, offsets and shapes are all in it: a transposed square state has the same size and still must not match.
    """
    lines = []
    for layout in layouts:
        tensors = ",".join(
            f"{entry.tensor.layer}.{entry.tensor.name}@{entry.offset_bytes}"
            f"[{'x'.join(map(str, entry.tensor.shape))}]{entry.tensor.dtype.value}"
            for entry in layout.fields
        )
        dtypes = " and ".join(dict.fromkeys(entry.tensor.dtype.value for entry in layout.fields))
        lines.append(
            f"{layout.component.value}: {layout.tokens} tokens, {layout.total_groups} groups of {layout.group_bytes} "
            f"bytes, {dtypes} tensors {hashlib.blake2b(tensors.encode(), digest_size=8).hexdigest()}"
        )
    return tuple(lines)


def config_digest(config: Mapping[str, object]) -> str:
    """Digest of a parsed model config, independent of key order and spacing."""
    return _digest(config)


def _digest(value: Mapping[str, object]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
