"""The token embedding, its rows dealt out over tensor-parallel ranks."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import embedding

from segue.layers.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Embedding:
    """`table` [this rank's rows, hidden] begins with the row of token `first` of `vocab_size`."""

    table: Tensor
    vocab_size: int
    first: int
    ranks: Ranks

    def __call__(self, token_ids: Tensor) -> Tensor:
        """token_ids [T] -> [T, hidden], a new tensor, the same on every rank."""
        if self.ranks.shard.tp_size == 1:
            return embedding(token_ids, self.table)
        rows = token_ids - self.first
        elsewhere = (rows < 0) | (rows >= self.table.shape[0])
        found = embedding(rows.masked_fill(elsewhere, 0), self.table)
        # One rank has the row, the others add zero: the sum is exact.
        return self.ranks.all_reduce(found.masked_fill_(elsewhere.unsqueeze(1), 0.0))
