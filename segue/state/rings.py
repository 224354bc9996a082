"""Rings: what recurrent layers were given by the last decode steps, where matrix states are not written in every step.

A ring row belongs to one slot while the slot's matrix state is behind. Rings are not state: they are never moved,
copied or digested, and nobody but the decode kernel and `fold` reads them.
"""

from collections.abc import Sequence

import torch

from segue.errors import ConfigError
from segue.state.layout import ONE_RANK, Shard
from segue.state.spec import MATRIX, LayerRecord, ModelState, uses_ssm_state
from segue.state.storage import TORCH_DTYPE


class Rings:
    """The ring rows of one process, row 0 the sink's, and the cursor of each slot: how many records it has."""

    def __init__(
        self,
        records: Sequence[LayerRecord],
        length: int,
        rows: int,
        slots: int,
        device: torch.device,
        shard: Shard = ONE_RANK,
    ) -> None:
        """`length` is L: a row holds the records of L - 1 tokens, those of the rank's head groups."""
        assert length > 1, "a state that is written in every step needs no ring"
        self.length, self.rows = length, rows
        self.cursors = torch.zeros(slots, dtype=torch.int32, device=device)
        self._views = {
            (record.layer, tensor.name): torch.zeros(
                (rows, shard.groups(tensor.groups), length - 1, *tensor.shape),
                dtype=TORCH_DTYPE[tensor.dtype],
                device=device,
            )
            for record in records
            for tensor in record.tensors
        }

    def view(self, layer: int, name: str) -> torch.Tensor:
        """[row, head group, record, *shape]."""
        return self._views[layer, name]


def row_bytes(records: Sequence[LayerRecord], length: int, shard: Shard = ONE_RANK) -> int:
    """Bytes of one ring row on one rank, over all layers."""
    tensors = [tensor for record in records for tensor in record.tensors]
    return (length - 1) * sum(shard.groups(tensor.groups) * tensor.group_bytes for tensor in tensors)


def require_replay(state: ModelState, model_name: str) -> None:
    """Raises ConfigError for a model whose matrix states cannot all be left behind, naming the first layer that
    cannot.
    """
    if (why := _obstacle(state)) is not None:
        raise ConfigError(
            f"engine.replay_length is above 1, but model '{model_name}' {why}; set it to 1", param="replay_length"
        )


def _obstacle(state: ModelState) -> str | None:
    if not uses_ssm_state(state):
        return "has no recurrent layers"
    matrices = [tensor.layer for spec in state.components for tensor in spec.tensors if tensor.name == MATRIX]
    if not matrices:
        return "has recurrent layers without matrix states"
    rules = {record.layer: record.rule for record in state.records}
    first = rules.get(matrices[0])
    for layer in matrices:
        if (rule := rules.get(layer)) is None:
            return f"has no replay kernel for the matrix state of layer {layer}"
        if rule != first:
            # One rule folds the rings of all layers.
            return f"has layers of two recurrences, '{first}' in layer {matrices[0]} and '{rule}' in layer {layer}"
    return None
