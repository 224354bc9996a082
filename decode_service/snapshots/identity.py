"""What must be equal where a snapshot is to go on, whatever page size, pools, host and number of ranks are."""

import hashlib
from collections.abc import Mapping, Sequence

from kv_transfer.hosting.loading import Identity
from segue.errors import SnapshotLayoutMismatch, SnapshotSourceMismatch
from segue.state.layout import UnitLayout

_SOURCE = ("model_config", "weights", "compute_dtype")
_LAYOUT = "state of "


def snapshot_identity(identity: Identity) -> dict[str, str]:
    """Of a worker. Model, weights, numbers and policy of computing, and the tensors of each component."""
    fields = dict(identity.fields)
    facts = identity.facts
    # The policy is part of what is computed in: a deterministic output is one to its end.
    found = {name: fields[name] for name in (*_SOURCE, "kernel_chunk") if name in fields}
    found["window"] = str(facts.window)
    return found | _components(facts.layouts)


def require_same(snapshot_id: str, theirs: Mapping[str, str], ours: Mapping[str, str]) -> None:
    """Raises SnapshotSourceMismatch for another model or policy, SnapshotLayoutMismatch for another form of state."""
    differing = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
    if not differing:
        return
    parts = [f"{name}: here {ours.get(name, 'absent')}, there {theirs.get(name, 'absent')}" for name in differing]
    message = f"snapshot {snapshot_id} is not of what this worker serves: {'; '.join(parts)}"
    if any(name in _SOURCE for name in differing):
        raise SnapshotSourceMismatch(message)
    raise SnapshotLayoutMismatch(message)


def _components(layouts: Sequence[UnitLayout]) -> dict[str, str]:
    found = {}
    for layout in layouts:
        tensors = ",".join(
            f"{field.tensor.layer}.{field.tensor.name}[{'x'.join(map(str, field.tensor.shape))}]{field.tensor.dtype}"
            for field in layout.fields
        )
        digest = hashlib.blake2b(tensors.encode(), digest_size=8).hexdigest()
        found[f"{_LAYOUT}{layout.component}"] = f"{layout.total_groups} groups, {len(layout.fields)} tensors {digest}"
    return found
