"""Rings: what recurrent layers were given by the last decode steps, where matrix states are not written in every step.

A ring row belongs to one slot while the slot's matrix state is behind. Rings are not state: they are never moved,
copied or digested, and nobody but the decode kernel and `fold` reads them.
"""

from collections.abc import Sequence

import torch

from segue.errors import ConfigError
from segue.state.layout import ONE_RANK, Shard
from segue.state.spec import ModelState, StateTensor, uses_ssm_state
from segue.state.storage import TORCH_DTYPE


class Rings:
    """The ring rows of one process, row 0 the sink's, and the cursor of each slot: how many records it has."""

    def __init__(
        self,
        records: Sequence[StateTensor],
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
            (record.layer, record.name): torch.zeros(
                (rows, shard.groups(record.groups), length - 1, *record.shape),
                dtype=TORCH_DTYPE[record.dtype],
                device=device,
            )
            for record in records
        }

    def view(self, layer: int, name: str) -> torch.Tensor:
        """[row, head group, record, *shape]."""
        return self._views[layer, name]


def row_bytes(records: Sequence[StateTensor], length: int, shard: Shard = ONE_RANK) -> int:
    """Bytes of one ring row on one rank, over all layers."""
    return (length - 1) * sum(shard.groups(record.groups) * record.group_bytes for record in records)


def require_replay(state: ModelState, model_name: str) -> None:
    """Raises ConfigError for a model whose matrix states cannot be left behind."""
    if not uses_ssm_state(state):
        why = "has no recurrent layers"
    elif not state.records:
        why = "has recurrent layers of a family without a replay kernel"
    else:
        return
    raise ConfigError(
        f"engine.replay_length is above 1, but model '{model_name}' {why}; set it to 1", param="replay_length"
    )
